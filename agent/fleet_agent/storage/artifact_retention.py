"""Keeps the files of ended attempts. Files that the controller has stored too are removed, oldest
first, once they exceed a limit.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet_agent.storage.attempt_index import AttemptKey

log = logging.getLogger(__name__)

KEPT_BYTES = 1 << 30  # of released files, which stay for users who look at the host itself
_MAX_LISTED = 1000
_RELEASED_MARK = ".released"


@dataclass(frozen=True, slots=True)
class _AttemptFolder:
    folder: Path
    released: bool = False
    size_bytes: int = 0  # disk space used; 0 until the attempt is released


class ArtifactRetention:
    """Manages the folders TRIAL/ATTEMPT below `root`.

    Only folders that the controller has released are removed, the oldest first.
    """

    def __init__(self, root: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._root = root
        self._kept_bytes = kept_bytes
        self._attempts: dict[AttemptKey, _AttemptFolder] = {
            key: _AttemptFolder(folder, *_release_state(folder))
            for key, folder in _find_attempts(root)
        }

    def unreleased(self, active: frozenset[AttemptKey]) -> list[str]:
        """Return the ended attempts that the controller has not released, as TRIAL/ATTEMPT: the
        1000 oldest. Attempts in `active` have not ended.
        """
        waiting = (
            key for key, kept in self._attempts.items() if not kept.released and key not in active
        )
        return [
            f"{trial_id}/{attempt}"
            for (trial_id, attempt), _ in zip(waiting, range(_MAX_LISTED), strict=False)
        ]

    def create_folder(self, trial_id: str, attempt: int) -> Path:
        """Return the folder of an attempt. Create it if it does not exist. Raises OSError."""
        folder = self._root / trial_id / str(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        self._attempts.setdefault((trial_id, attempt), _AttemptFolder(folder))
        return folder

    def release(self, trial_id: str, attempt: int) -> None:
        """Record that the controller has stored the files of an attempt.

        Then remove the oldest released folders until the released files fit into the limit. Do
        nothing if the attempt is released already or is not on this host.
        """
        kept = self._attempts.get((trial_id, attempt))
        if kept is None or kept.released:
            return
        try:
            (kept.folder / _RELEASED_MARK).touch()
        except OSError as error:  # for example a full disk; the controller will release it again
            log.info("%s cannot be marked as released: %s", kept.folder, error.strerror)
        self._attempts[trial_id, attempt] = _AttemptFolder(
            kept.folder, True, _folder_bytes(kept.folder)
        )
        self._remove_down_to(self._kept_bytes)

    def drop_released(self) -> None:
        """Remove all released folders, because the disk is full."""
        self._remove_down_to(0)

    def _remove_down_to(self, bytes_kept: int) -> None:
        released = {key: kept for key, kept in self._attempts.items() if kept.released}
        total = sum(kept.size_bytes for kept in released.values())
        for key, kept in released.items():
            if total <= bytes_kept:
                return
            shutil.rmtree(kept.folder, ignore_errors=True)
            if kept.folder.exists():
                log.warning("%s cannot be removed", kept.folder)
            with_siblings = kept.folder.parent
            if not any(with_siblings.iterdir()):
                with_siblings.rmdir()
            total -= kept.size_bytes
            del self._attempts[key]


def _find_attempts(root: Path) -> Iterator[tuple[AttemptKey, Path]]:
    """Yield the key and the folder of each attempt, the oldest first."""
    folders = (
        [folder for folder in root.glob("*/*") if folder.is_dir() and folder.name.isdecimal()]
        if root.is_dir()
        else []
    )
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime_ns):
        yield (folder.parent.name, int(folder.name)), folder


def _release_state(folder: Path) -> tuple[bool, int]:
    released = (folder / _RELEASED_MARK).exists()
    return released, _folder_bytes(folder) if released else 0


def _folder_bytes(folder: Path) -> int:
    return sum(
        os.lstat(Path(place) / name).st_blocks * 512
        for place, _, names in os.walk(folder)
        for name in names
    )
