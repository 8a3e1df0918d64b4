"""Owns the lines of a controller while it works: one for each agent, begun, changed and ended as
the fleet file changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from fleet_controller.hosts.host_connection import HostConnection
from fleet_controller.hosts.targets import AgentTarget, FleetTargets
from fleet_controller.jobs.state_writer import StateWriter

log = logging.getLogger(__name__)


class HostConnections:
    """All lines, in the order of the file, then of the addresses. `work` must be running for any of
    them to move.
    """

    def __init__(self, targets: FleetTargets, writer: StateWriter, artifacts: Path) -> None:
        self.by_host: dict[str, HostConnection] = {}
        self._targets = targets
        self._writer = writer
        self._artifacts = artifacts
        self.all = [self._new_connection(peer) for peer in targets.agents]
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[HostConnection, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as self._group:
            for connection in self.all:
                self._start_task(connection)
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Hang up all, also those that have left."""
        for connection in self.all:
            await connection.agent.close()

    async def apply_targets(self, targets: Iterable[AgentTarget]) -> None:
        """The hosts of the fleet file as it is now; addresses that were given alone stay as they
        are.

        A host that is no longer there gets nothing new; its line ends when what runs there has
        ended.
        """
        wanted = {peer.fleet_host.name: peer for peer in targets if peer.fleet_host is not None}
        for connection in self.all:
            if connection.fleet_host is None:
                continue
            target = wanted.pop(connection.host, None)
            if target is not None and target.fleet_host is not None:
                await connection.update_fleet_host(target.fleet_host)
            elif not connection.is_removed:
                log.info("%s: it is no longer in the fleet file", connection.host)
                connection.is_removed = True
        for target in wanted.values():
            connection = self._new_connection(target)
            log.info("%s: it is new in the fleet file", connection.host)
            self.all.append(connection)
            self._start_task(connection)
        self._writer.job_index.notify()

    async def close_removed(self) -> list[str]:
        """End the lines of hosts that have left and on which nothing is active any more; their
        names.
        """
        gone = [
            line
            for line in self.all
            if line.is_removed and not self._writer.job_index.active_on(line.host)
        ]
        for connection in gone:
            self.all.remove(connection)
            self.by_host.pop(connection.host, None)
            if connection in self._tasks:
                self._tasks.pop(connection).cancel()
            await connection.agent.close()
        return [line.host for line in gone]

    def _new_connection(self, target: AgentTarget) -> HostConnection:
        return HostConnection(
            target, self._writer, self._artifacts, self.by_host, self._targets.access
        )

    def _start_task(self, connection: HostConnection) -> None:
        if self._group is not None:
            self._tasks[connection] = self._group.create_task(connection.run())
