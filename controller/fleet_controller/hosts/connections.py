"""Owns the lines of a controller while it works: one for each agent, begun, changed and ended as the fleet file changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from fleet_controller.hosts.host_connection import HostLine
from fleet_controller.hosts.targets import Following, Peer
from fleet_controller.jobs.state_writer import Desk

log = logging.getLogger(__name__)


class Lines:
    """All lines, in the order of the file, then of the addresses. `work` must be running for any of them to move."""

    def __init__(self, follow: Following, desk: Desk, artifacts: Path) -> None:
        self.names: dict[str, HostLine] = {}
        self._follow = follow
        self._desk = desk
        self._artifacts = artifacts
        self.all = [self._made(peer) for peer in follow.peers]
        self._group: asyncio.TaskGroup | None = None
        self._working: dict[HostLine, asyncio.Task[None]] = {}

    async def work(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as self._group:
            for line in self.all:
                self._begin(line)
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Hang up all, also those that have left."""
        for line in self.all:
            await line.agent.close()

    async def adopt(self, peers: Iterable[Peer]) -> None:
        """The hosts of the fleet file as it is now; addresses that were given alone stay as they are.

        A host that is no longer there gets nothing new; its line ends when what runs there has ended.
        """
        wanted = {peer.known.name: peer for peer in peers if peer.known is not None}
        for line in self.all:
            if line.known is None:
                continue
            peer = wanted.pop(line.host, None)
            if peer is not None and peer.known is not None:
                await line.change(peer.known)
            elif not line.leaving:
                log.info("%s: it is no longer in the fleet file", line.host)
                line.leaving = True
        for peer in wanted.values():
            line = self._made(peer)
            log.info("%s: it is new in the fleet file", line.host)
            self.all.append(line)
            self._begin(line)
        self._desk.board.tell()

    async def drop(self) -> list[str]:
        """End the lines of hosts that have left and on which nothing is active any more; their names."""
        gone = [line for line in self.all if line.leaving and not self._desk.board.active_on(line.host)]
        for line in gone:
            self.all.remove(line)
            self.names.pop(line.host, None)
            if line in self._working:
                self._working.pop(line).cancel()
            await line.agent.close()
        return [line.host for line in gone]

    def _made(self, peer: Peer) -> HostLine:
        return HostLine(peer, self._desk, self._artifacts, self.names, self._follow.ways)

    def _begin(self, line: HostLine) -> None:
        if self._group is not None:
            self._working[line] = self._group.create_task(line.work())
