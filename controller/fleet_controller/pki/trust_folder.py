"""Writes the files of a trust folder: with private modes, atomically, one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fleet_protos.errors import ConfigError, Conflict

_LOCK_S, _POLL_S = 30.0, 0.02
_HALF_MADE = ".half-made-"


def write_file(path: Path, content: bytes, *, private: bool) -> None:
    """Replace a file atomically. Its mode is 0600 if `private` is set, else 0644. Raises
    ConfigError.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_HALF_MADE)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), 0o600 if private else 0o644)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync(path.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}",
            "free some disk space, or choose another folder",
        ) from error


def create_folder(folder: Path, files: Mapping[str, tuple[bytes, bool]]) -> None:
    """Create a folder with mode 0700 and all these files, or nothing. `files` maps a name to
    (content, private).

    Raises Conflict if the folder exists already. Raises ConfigError if it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        half = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}{_HALF_MADE}"))
        try:
            for name, (content, private) in files.items():
                write_file(half / name, content, private=private)
            half.rename(folder)
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
        _sync(folder.parent)
    except OSError as error:
        if folder.exists():
            raise Conflict(
                f"{folder} was created by another command at the same time",
                "nothing is lost: use that folder",
            ) from error
        raise ConfigError(
            f"cannot create {folder}: {error.strerror}", "choose a folder that you may write to"
        ) from error


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files that a killed command left in the folder and next to it."""
    for left in folder.parent.glob(f".{folder.name}{_HALF_MADE}*"):
        shutil.rmtree(left, ignore_errors=True)
    for file in folder.glob(f"{_HALF_MADE}*"):
        file.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Let no other process or thread change the folder in the with block. Raises Conflict if the
    lock is not free within 30 s. Raises ConfigError if the lock file cannot be written.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot write {lock.parent}: {error.strerror}", "choose a folder that you may write to"
        ) from error
    try:
        _wait_for(handle, lock)
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int, lock: Path) -> None:
    deadline_s = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise Conflict(
                    f"another command has held the lock {lock} for more than {_LOCK_S:g} s",
                    "wait until that command ends, or stop it; then try again",
                ) from None
            time.sleep(_POLL_S)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
