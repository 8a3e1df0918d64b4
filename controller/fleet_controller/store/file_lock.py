"""The lock that lets only one controller work in a state folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet_protos.errors import ConfigError, Conflict, StoreLost

_LONGEST_CONTENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock file that this process holds. Its first line is the pid of the holder.

    `note` is the text that an earlier holder wrote below the first line.
    """

    path: Path
    descriptor: int
    note: str = ""

    def check(self) -> None:
        """Raise StoreLost if the file is no longer at its path. Another process could then take the
        lock too.
        """
        require_same_file(self.path, os.fstat(self.descriptor))

    def write_note(self, note: str) -> None:
        """Write a note into the file for the next holder of the lock."""
        content = f"{os.getpid()}\n{note}".encode()
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, content, 0)


@contextmanager
def hold_lock(path: Path) -> Iterator[FileLock]:
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
        content = os.pread(file, _LONGEST_CONTENT_BYTES, 0).decode(errors="replace")
        pid, _, note = content.partition("\n")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another fleetctl (pid {pid.strip() or 'unknown'}) runs a controller in "
                f"{path.parent}",
                "`fleetctl submit` sends a job to a running `fleetctl up`; "
                "--state DIR uses another folder",
            ) from error
        lock = FileLock(path, file, note)
        lock.check()  # another process may have removed the file since it was opened
        lock.write_note(note)
        yield lock
    finally:
        os.close(file)


def read_note(path: Path) -> str:
    """Return the note that a holder wrote into a lock file, or an empty text."""
    try:
        return path.read_text(errors="replace").partition("\n")[2].strip()
    except OSError:
        return ""


def require_same_file(path: Path, opened: os.stat_result) -> None:
    """Raise StoreLost if `path` no longer leads to the opened file."""
    try:
        there = path.stat()
    except FileNotFoundError:
        raise _lost(f"{path} was removed") from None
    except OSError as error:
        raise _lost(f"{path} can no longer be read ({error.strerror})") from error
    if (there.st_dev, there.st_ino) != (opened.st_dev, opened.st_ino):
        raise _lost(f"{path} was replaced by another file")


def _lost(what: str) -> StoreLost:
    return StoreLost(
        f"the store is no longer the one that this controller opened: {what}",
        "put the files back as they were, or restore a backup, then start the controller again; "
        "agents keep the events that are not stored",
    )
