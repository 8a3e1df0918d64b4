"""Watches the agent's state folder: how much disk space is free, and whether the journal can be
written and its files still exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fleet_agent.storage.artifact_retention import ArtifactRetention
from fleet_agent.storage.disk_space import DiskSpace
from fleet_agent.storage.journal import Journal, JournalFailed

log = logging.getLogger(__name__)

T = TypeVar("T")
_DISK_CHECK_S = 2.0


class JournalThread:
    """Runs all reading and writing of the journal in one thread, so that a slow disk never blocks
    the event loop.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class StateWatch:
    """Watches the agent's state folder `folder` and the journal in it."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        retention: ArtifactRetention,
        journal_thread: JournalThread,
    ) -> None:
        self._journal = journal
        self._stop_reason = folder / "stop-reason.txt"
        self._retention = retention
        self._journal_thread = journal_thread
        self._disk_space = DiskSpace(folder)
        self._journal_broken = asyncio.Event()
        self.loss = ""  # which files of the journal no longer exist, in words

    @property
    def free_bytes(self) -> int:
        """The number of free bytes on the disk of the state folder."""
        return self._disk_space.free_bytes()

    @property
    def shortage(self) -> str:
        """The reason why no new trial may begin on this host now. Empty if a trial may begin."""
        full = (
            "the disk is full: the end of a trial might not be journalled"
            if self._journal.lacks_reserve
            else ""
        )
        return self._disk_space.shortage() or full

    async def free_disk_space(self) -> None:
        """Watch the disk until cancelled. While it is full, delete files that the controller has
        stored too, and restore the journal's reserve as soon as there is space.
        """
        while True:
            if self.shortage:
                self._retention.drop_released()
                await self._journal_thread.run(self._journal.refill_reserve)
            await asyncio.sleep(_DISK_CHECK_S)

    def report_journal_failure(self) -> None:
        """Check whether the journal accepts further records. Call this after a write to the journal
        has failed.
        """
        if self._journal.broken_reason:
            self._journal_broken.set()

    async def raise_when_journal_broken(self) -> None:
        """Wait until the journal accepts no more records, then raise JournalFailed."""
        await self._journal_broken.wait()
        why = self._journal.broken_reason
        self._record_stop(f"its journal accepted no more records: {why}")
        raise JournalFailed(
            f"the journal accepts no more records ({why}): this agent stops, and its next process "
            "opens the journal again",
            "check the disk of the agent's state folder",
        )

    def _record_stop(self, reason: str) -> None:
        try:
            self._stop_reason.write_text(reason, encoding="utf-8")
        except OSError as error:
            log.warning("%s cannot be written: %s", self._stop_reason, error.strerror)

    def take_stop_reason(self) -> str:
        """Return why the previous process of this agent stopped, and forget it. Empty if it did not
        stop by itself.
        """
        try:
            reason = self._stop_reason.read_text(encoding="utf-8", errors="replace")
            self._stop_reason.unlink()
        except OSError:
            return ""
        return reason

    async def wait_until_lost(self) -> None:
        """Wait until a file of the journal no longer exists. Records that are written from then on
        are lost.
        """
        while not self.loss:
            await asyncio.sleep(_DISK_CHECK_S)
            self.loss = await self._journal_thread.run(self._journal.missing_files)
        log.error("%s: this agent ends its trials and stops", self.loss)

    def raise_if_lost(self) -> None:
        """Raise JournalFailed if a file of the journal no longer exists."""
        if self.loss:
            raise JournalFailed(
                f"{self.loss} while the agent ran: the agent stops, and its next process starts "
                "with the files that exist then",
                "keep other programs away from the agent's state folder; events that the "
                "controller had not stored are lost, and the controller retries their trials",
            )
