"""Waits before a submit for the first contact with the agents, and lists the hosts on which trials
may be planned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fleet_controller.hosts.host_connection import HostConnection
from fleet_controller.jobs.job_index import JobIndex, wait_until_set
from fleet_controller.planning.host_selection import HostCandidate
from fleet_protos.errors import ConfigError, HostUnreachable


def planning_candidates(connections: Sequence[HostConnection]) -> tuple[HostCandidate, ...]:
    """Return the present state of every host that has a name and was not removed."""
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
    """Wait for at most `limit_s` seconds until a job can be planned.

    The wait ends when each agent was tried and at least one is connected or in a fleet file. It
    also ends when all hosts in `named` are connected.

    Without a fleet file, raises HostUnreachable if no agent is connected. Raises HostUnreachable or
    ConfigError if a host in `named` is not connected. With a fleet file, trials may wait for their
    hosts.
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
        why = troubles or "no address was given"
        raise HostUnreachable(
            f"no agent is connected ({why})", "start an agent, or give the address of an agent"
        )
    missing = [name for name in named if name not in connected]
    # If none of the named hosts is known, the plan has a finding with its line in the file.
    if missing and (troubles or len(missing) < len(named)):
        kind = HostUnreachable if troubles else ConfigError
        missing_names, connected_names = ", ".join(missing), ", ".join(sorted(connected))
        message = f"the job names hosts that are not connected: {missing_names}"
        raise kind(
            f"{message} ({troubles})" if troubles else message,
            f"the connected hosts are: {connected_names}",
        )
