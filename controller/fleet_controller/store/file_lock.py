"""The lock that lets only one controller work in a state folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet_protos.errors import ConfigError, Conflict


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock file in the with block. The kernel releases the lock if the process dies. This
    function never waits.

    Raises Conflict with the holder's pid if another process holds the lock. Raises ConfigError if
    the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot use the state folder {path.parent}: {error.strerror}",
            "choose another folder with --state DIR",
        ) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.read(file, 32).decode(errors="replace").strip() or "unknown"
            raise Conflict(
                f"another fleetctl (pid {pid}) runs a controller in {path.parent}",
                "`fleetctl submit` sends a job to a running `fleetctl up`; "
                "--state DIR uses another folder",
            ) from error
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(file)
