"""Owns the question whether the agent's disk has room for another trial; frees nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LEAST_FREE_BYTES = 64 << 20  # logs and raw requests of one trial, with some to spare
_LEAST_FILES = 200


@dataclass(frozen=True, slots=True)
class Room:
    """The disk that holds `folder`; a trial needs `least_bytes` of it."""

    folder: Path
    least_bytes: int = LEAST_FREE_BYTES

    def free_bytes(self) -> int:
        """What this user may still write there; 0 when the folder cannot be asked."""
        try:
            disk = os.statvfs(self.folder)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def missing(self) -> str:
        """Why no trial may begin, in words; empty when one may."""
        try:
            disk = os.statvfs(self.folder)
        except OSError as error:
            return f"{self.folder}: {error.strerror}"
        if (free := disk.f_bavail * disk.f_frsize) < self.least_bytes:
            return f"the disk of {self.folder} has {free >> 20} MiB free, a trial needs {self.least_bytes >> 20} MiB"
        if disk.f_files and disk.f_favail < _LEAST_FILES:
            return f"the disk of {self.folder} takes only {disk.f_favail} more files"
        return ""
