"""Checks whether the agent's disk has room for another trial."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIN_FREE_BYTES = 64 << 20  # logs and raw requests of one trial, with some to spare
_LEAST_FILES = 200
_FULL_BYTES = 64 << 10  # with less, the processes of a server cannot even write a page of log each


def describe_full_disk(folder: Path) -> str:
    """Return `the disk of DIR is full` if nothing can be written there. Otherwise return an empty
    text.
    """
    free, _ = _free_bytes_and_files(folder)
    return f"the disk of {folder} is full" if free < _FULL_BYTES else ""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Measures free space on the disk that holds `folder`. A trial needs `least_bytes` of it."""

    folder: Path
    least_bytes: int = MIN_FREE_BYTES

    def free_bytes(self) -> int:
        """Return how many bytes this user can still write. Return 0 if that cannot be read."""
        return _free_bytes_and_files(self.folder)[0]

    def shortage(self) -> str:
        """Return why the disk has no room for another trial. Empty if there is room."""
        free, files = _free_bytes_and_files(self.folder)
        if free < self.least_bytes:
            free_mib, needed_mib = free >> 20, self.least_bytes >> 20
            return (
                f"the disk of {self.folder} has {free_mib} MiB free, but a trial needs "
                f"{needed_mib} MiB"
            )
        if files < _LEAST_FILES:
            return f"the disk of {self.folder} has room for only {files} more files"
        return ""


def _free_bytes_and_files(folder: Path) -> tuple[int, int]:
    """Return how many bytes and how many files this user can still write. Return (0, 0) if that
    cannot be read.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0, 0
    return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else _LEAST_FILES
