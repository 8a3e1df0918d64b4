"""Reads the fleet file again on request and when the file has changed. If the new content is wrong,
the old content stays in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from fleet_controller.core.inventory import Inventory
from fleet_controller.fleet_file.fleet_loader import load_fleet_file
from fleet_controller.jobs.job_index import wait_until_set
from fleet_protos.errors import ConfigError
from fleet_transport.file_stamp import file_stamp

log = logging.getLogger(__name__)

_POLL_S = 2.0


class FleetFileWatcher:
    """Watches one fleet file. `apply` is called with each correct version of the file; `report` is
    called with one line about each change.
    """

    def __init__(
        self,
        path: Path,
        apply: Callable[[Inventory], Awaitable[None]],
        report: Callable[[str], None] = log.info,
    ) -> None:
        self._path = path
        self._apply = apply
        self.report = report
        self._seen = file_stamp(path)
        self._requested = asyncio.Event()

    def read_now(self) -> None:
        """Read the file soon, even if it looks unchanged."""
        self._requested.set()

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while True:
            await wait_until_set(self._requested, _POLL_S)
            stamp = await asyncio.to_thread(file_stamp, self._path)
            if stamp != self._seen or self._requested.is_set():
                self._requested.clear()
                self._seen = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            inventory = (await asyncio.to_thread(load_fleet_file, self._path)).inventory
        except ConfigError as error:  # an incomplete save or a mistake; a later save corrects it
            self.report(f"{self._path} has changed but is not used: {error.message}")
            return
        await self._apply(inventory)
        self.report(f"{self._path}: read again, {len(inventory.hosts)} hosts")
