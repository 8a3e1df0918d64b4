"""Owns a disk of a few MiB that only one process of a test sees as its own, to be filled and freed
from outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MINE = ["unshare", "--mount", "--map-root-user"]


class SmallDisk:
    """A tmpfs of `size` (as mount(8) writes it) at `folder`, for the process that `start` makes."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        self.size = size
        self._pid = 0
        folder.mkdir(exist_ok=True)
        if subprocess.run(
            [*_MINE, "mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode:
            pytest.skip("this machine lets nobody mount a small disk of his own")

    def start(self, *argv: str, log: Path) -> subprocess.Popen[bytes]:
        """A process for which the disk is at `folder`."""
        script = f'mount -t tmpfs -o size={self.size} tmpfs "$0" && exec "$@"'
        with log.open("ab") as output:
            words = [*_MINE, "sh", "-c", script, str(self.folder), sys.executable, *argv]
            process = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
        self._pid = process.pid
        return process

    @property
    def inside(self) -> Path:
        """The disk as others reach it while the process lives."""
        return Path(f"/proc/{self._pid}/root{self.folder}")

    def fill(self, left_bytes: int = 0) -> None:
        """Leave so much free and no more."""
        with (self.inside / "filler").open("ab", buffering=0) as filler:
            disk = os.statvfs(self.inside)
            try:
                os.posix_fallocate(
                    filler.fileno(),
                    0,
                    filler.tell() + max(0, disk.f_bavail * disk.f_frsize - left_bytes),
                )
                while not left_bytes:
                    filler.seek(0, os.SEEK_END)
                    filler.write(bytes(512))
            except OSError:
                return

    def free(self) -> None:
        """Take away what `fill` put there."""
        (self.inside / "filler").unlink(missing_ok=True)
