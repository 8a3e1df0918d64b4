"""Watches the agent's state folder: free disk space, the journal's health, and whether its files
still exist.
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
    """The one thread that reads and writes the journal, so that disk waits never block the loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class StateWatch:
    """The condition of the state folder `folder`."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        retention: ArtifactRetention,
        journal_thread: JournalThread,
    ) -> None:
        self._journal = journal
        self._retention = retention
        self._journal_thread = journal_thread
        self._disk_space = DiskSpace(folder)
        self._journal_broken = asyncio.Event()
        self.loss = ""  # which files of the journal no longer exist, in words

    @property
    def free_bytes(self) -> int:
        """Free bytes on the disk of the state folder."""
        return self._disk_space.free_bytes()

    @property
    def shortage(self) -> str:
        """Why no new trial may begin here now; empty if one may."""
        full = (
            "the disk is full: the end of a trial might not be journalled"
            if self._journal.lacks_reserve
            else ""
        )
        return self._disk_space.shortage() or full

    async def free_disk_space(self) -> None:
        """Run until cancelled: while the disk is full, delete files that the controller has too,
        and restore the journal's reserve as soon as there is space.
        """
        while True:
            if self.shortage:
                self._retention.drop_released()
                await self._journal_thread.run(self._journal.refill_reserve)
            await asyncio.sleep(_DISK_CHECK_S)

    def report_journal_failure(self) -> None:
        """Check, after a write to the journal failed, whether it accepts any further records."""
        if self._journal.is_broken:
            self._journal_broken.set()

    async def raise_when_journal_broken(self) -> None:
        """Wait until the journal accepts no more records, then raise JournalFailed."""
        await self._journal_broken.wait()
        raise JournalFailed(
            "the journal accepts no more records: this agent stops, and the next one reopens it",
            "check the disk of the agent's state folder",
        )

    async def wait_until_lost(self) -> None:
        """Wait until files of the journal no longer exist. What is written from then on is lost and
        cannot be read again.
        """
        while not self.loss:
            await asyncio.sleep(_DISK_CHECK_S)
            self.loss = await self._journal_thread.run(self._journal.missing_files)
        log.error("%s: this agent ends its trials and stops", self.loss)

    def raise_if_lost(self) -> None:
        """Raise JournalFailed if files of the journal no longer exist."""
        if self.loss:
            raise JournalFailed(
                f"{self.loss} while the agent ran: it stops, and the next one starts with the "
                "files that exist then",
                "keep other programs away from the agent's state folder; events that the "
                "controller had not stored are lost, and it retries their trials",
            )
