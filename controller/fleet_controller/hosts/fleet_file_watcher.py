"""Owns the fleet file of a working controller: reads it again when it has changed or somebody asks, keeps the old one when it is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from fleet_controller.core.inventory import Inventory
from fleet_controller.fleet_file.fleet_loader import load_fleet_file
from fleet_controller.jobs.job_index import wait_for
from fleet_protos.errors import ConfigError

log = logging.getLogger(__name__)

_LOOK_S = 2.0
Stamp = tuple[int, int, int]


class FleetFileWatch:
    """One file. `adopt` gets each version of it that is right; `say` is told what came of a change."""

    def __init__(self, path: Path, adopt: Callable[[Inventory], Awaitable[None]], say: Callable[[str], None] = log.info) -> None:
        self._path = path
        self._adopt = adopt
        self.say = say
        self._seen = stamp_of(path)
        self._asked = asyncio.Event()

    def read_now(self) -> None:
        """Do not wait for the next look, and read it even if it looks the same."""
        self._asked.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await wait_for(self._asked, _LOOK_S)
            stamp = await asyncio.to_thread(stamp_of, self._path)
            if stamp != self._seen or self._asked.is_set():
                self._asked.clear()
                self._seen = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            inventory = (await asyncio.to_thread(load_fleet_file, self._path)).inventory
        except ConfigError as error:  # a save that is not whole yet, or a mistake: the next one makes up for it
            self.say(f"{self._path} has changed and is not taken: {error.message}")
            return
        await self._adopt(inventory)
        self.say(f"{self._path}: read again, {len(inventory.hosts)} hosts")


def stamp_of(path: Path) -> Stamp | None:
    """What tells one version of a file from the next; None when it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)
