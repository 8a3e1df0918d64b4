"""Detects whether a file was written or replaced since it was last read."""

from __future__ import annotations

from pathlib import Path

FileStamp = tuple[int, int, int]  # modification time in ns, size in bytes, inode


def file_stamp(path: Path) -> FileStamp | None:
    """Return the file's stamp, which changes when the file is written or replaced. Return None if
    the file cannot be read.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
