"""Owns the question whether the agent's disk has room for another trial; frees nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIN_FREE_BYTES = 64 << 20  # logs and raw requests of one trial, with some to spare
_LEAST_FILES = 200
_FULL_BYTES = 64 << 10  # less is not even a page of a log for each process


def describe_full_disk(folder: Path) -> str:
    """`the disk of DIR is full` when nothing can be written there, else empty."""
    free, _ = _free_bytes_and_files(folder)
    return f"the disk of {folder} is full" if free < _FULL_BYTES else ""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The disk that holds `folder`; a trial needs `least_bytes` of it."""

    folder: Path
    least_bytes: int = MIN_FREE_BYTES

    def free_bytes(self) -> int:
        """What this user may still write there; 0 when the folder cannot be asked."""
        return _free_bytes_and_files(self.folder)[0]

    def shortage(self) -> str:
        """Why no trial may begin, in words; empty when one may."""
        free, files = _free_bytes_and_files(self.folder)
        if free < self.least_bytes:
            return f"the disk of {self.folder} has {free >> 20} MiB free, a trial needs {self.least_bytes >> 20} MiB"
        if files < _LEAST_FILES:
            return f"the disk of {self.folder} takes only {files} more files"
        return ""


def _free_bytes_and_files(folder: Path) -> tuple[int, int]:
    """Bytes and files that this user may still put there; none when the disk cannot be asked."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0, 0
    return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else _LEAST_FILES
