"""Lets a submit wait for the first contact with the agents, and lists the hosts that it may plan
on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fleet_controller.hosts.host_connection import HostConnection
from fleet_controller.jobs.job_index import JobIndex, wait_until_set
from fleet_controller.planning.host_selection import HostCandidate
from fleet_protos.errors import ConfigError, HostUnreachable


def planning_candidates(connections: Sequence[HostConnection]) -> tuple[HostCandidate, ...]:
    """Return every host that has a name and is not removed, as it is now."""
    hosts = (
        connection for connection in connections if connection.host and not connection.is_removed
    )
    return tuple(
        HostCandidate(
            connection.host,
            connection.labels,
            connection.connected,
            connection.fleet_host is not None,
            connection.load_only,
        )
        for connection in hosts
    )


async def wait_until_connected(
    connections: Sequence[HostConnection], named: Sequence[str], job_index: JobIndex, limit_s: float
) -> None:
    """Wait at most `limit_s` until each agent was tried and one of them, or a fleet file, gives a
    host, or until all hosts in `named` are connected.

    Without a fleet file, raises HostUnreachable if no agent or not every named one is connected.
    With one, trials may wait for their hosts.
    """
    deadline_s = time.monotonic() + limit_s
    while not _may_plan(connections, named) and (left_s := deadline_s - time.monotonic()) > 0:
        await wait_until_set(job_index.next_change(), left_s)
    if not any(connection.fleet_host is not None for connection in connections):
        _raise_unreachable(connections, named)


def _may_plan(connections: Sequence[HostConnection], named: Sequence[str]) -> bool:
    connected = {connection.host for connection in connections if connection.connected}
    if all(connection.was_tried for connection in connections):
        return (
            bool(connected)
            or not connections
            or any(connection.fleet_host is not None for connection in connections)
        )
    return bool(connected) and bool(named) and connected.issuperset(named)


def _raise_unreachable(connections: Sequence[HostConnection], named: Sequence[str]) -> None:
    troubles = "; ".join(
        f"{connection.agent.address}: {connection.trouble or 'no answer yet'}"
        for connection in connections
        if not connection.connected
    )
    connected = {connection.host for connection in connections if connection.connected}
    if not connected:
        raise HostUnreachable(
            f"no agent is connected ({troubles or 'no address was given'})",
            "start an agent, or give its address",
        )
    missing = [name for name in named if name not in connected]
    # If none of the named hosts is known, the plan has a finding with its line in the file.
    if missing and (troubles or len(missing) < len(named)):
        kind = HostUnreachable if troubles else ConfigError
        message = f"hosts that the job names are not connected: {', '.join(missing)}"
        raise kind(
            f"{message} ({troubles})" if troubles else message,
            f"the connected hosts are: {', '.join(sorted(connected))}",
        )
