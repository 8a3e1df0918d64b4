"""Keeps one connection for each agent. When the fleet file changes, connections are added, changed
and closed.
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
    """All connections: first those to the hosts of the fleet file, in its order, then those to the
    given addresses. `run` must be running.
    """

    def __init__(self, targets: FleetTargets, writer: StateWriter, artifacts: Path) -> None:
        self.by_host: dict[str, HostConnection] = {}
        self._targets = targets
        self._writer = writer
        self._artifacts = artifacts
        self.all = [self._new_connection(target) for target in targets.agents]
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[HostConnection, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run all connections until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for connection in self.all:
                self._start_task(connection)
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Close all connections, including those of removed hosts."""
        for connection in self.all:
            await connection.agent.close()

    async def apply_targets(self, targets: Iterable[AgentTarget]) -> None:
        """Apply the hosts of a changed fleet file. Addresses that were given on the command line
        stay.

        A removed host gets no new trials. Its connection is closed when its last trial has ended.
        """
        wanted = {
            target.fleet_host.name: target for target in targets if target.fleet_host is not None
        }
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
        """Close the connections of removed hosts on which no trial is active. Return the names of
        these hosts.
        """
        gone = [
            connection
            for connection in self.all
            if connection.is_removed and not self._writer.job_index.active_on(connection.host)
        ]
        for connection in gone:
            self.all.remove(connection)
            self.by_host.pop(connection.host, None)
            if connection in self._tasks:
                self._tasks.pop(connection).cancel()
            await connection.agent.close()
        return [connection.host for connection in gone]

    def _new_connection(self, target: AgentTarget) -> HostConnection:
        return HostConnection(
            target, self._writer, self._artifacts, self.by_host, self._targets.access
        )

    def _start_task(self, connection: HostConnection) -> None:
        if self._group is not None:
            self._tasks[connection] = self._group.create_task(connection.run())
