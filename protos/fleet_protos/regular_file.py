"""Opens files that somebody else has named: never waits for a FIFO, never reads a device."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_regular_file(path: Path) -> io.BufferedReader:
    """Open a file for reading. Raises OSError, also if it is not a regular file.

    Opening a FIFO would wait for a writer without end.
    """
    _check(os.stat(path), path)  # opening a device may already have an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), path)  # it may have been replaced
    except OSError:
        os.close(descriptor)
        raise
    return io.BufferedReader(io.FileIO(descriptor))


def _check(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
