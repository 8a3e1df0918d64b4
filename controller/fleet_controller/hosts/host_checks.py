"""Checks many hosts at once. A result holds what the agent finds on its host and what the
controller knows about the host.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from fleet_controller.core.controller_api import HostCheck, HostFinding
from fleet_controller.core.quarantine import HostRecord
from fleet_controller.hosts.host_connection import HostConnection
from fleet_protos import __version__
from fleet_protos.errors import FleetError

_AT_ONCE = 64
_CLOCK_APART_S = 5.0
_EXPIRES_SOON_S = 30 * 86_400


async def check_connections(
    connections: Sequence[HostConnection], record_of: Callable[[str], HostRecord]
) -> AsyncIterator[HostCheck]:
    """Check all these hosts and yield each result when it is ready."""
    answers: asyncio.Queue[HostCheck] = asyncio.Queue()
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(connection: HostConnection) -> None:
        async with slots:
            found = await check_connection(connection)
        answers.put_nowait(
            replace(found, findings=(*found.findings, *record_findings(record_of(connection.host))))
        )

    async with asyncio.TaskGroup() as tasks:
        for connection in connections:
            tasks.create_task(ask(connection))
        for _ in connections:
            yield await answers.get()


async def check_connection(connection: HostConnection) -> HostCheck:
    """Return what the agent of a host finds there, and what the controller sees of the host."""
    began_s = time.monotonic()
    name = connection.host or connection.agent.address
    try:
        found = await connection.agent.check_host()
    except FleetError as error:
        cause = connection.cause_of(error)
        unreached = HostFinding("not_reached", "error", cause.message, cause.hint)
        return HostCheck(name, False, (unreached,), time.monotonic() - began_s)
    return HostCheck(
        name, True, (*found, *connection_findings(connection)), time.monotonic() - began_s
    )


def connection_findings(connection: HostConnection) -> tuple[HostFinding, ...]:
    """Return findings about clock, version and certificate, as the controller sees them."""
    status = connection.status()
    found = []
    if abs(status.clock_ahead_s) > _CLOCK_APART_S:
        side = "ahead of" if status.clock_ahead_s > 0 else "behind"
        difference_s = abs(status.clock_ahead_s)
        message = f"the host's clock is {difference_s:.1f} s {side} the controller's clock"
        found.append(
            HostFinding(
                "clock_apart",
                "warning",
                message,
                "run chrony or systemd-timesyncd on the host and on the controller's machine",
            )
        )
    if status.version and status.version != __version__:
        message = f"the agent has benchfleet {status.version}, but the controller has {__version__}"
        found.append(
            HostFinding(
                "version_differs",
                "warning",
                message,
                "`fleetctl deploy` updates the agent",
            )
        )
    left_s = status.certificate_expires_unix_s - time.time_ns() / 1e9
    if status.certificate_expires_unix_s and left_s < _EXPIRES_SOON_S:
        days_left = left_s / 86_400
        message = f"the agent's certificate expires in {days_left:.0f} days"
        found.append(
            HostFinding("certificate_expires", "warning", message, "`fleetctl deploy` renews it")
        )
    return tuple(found)


def record_findings(record: HostRecord) -> tuple[HostFinding, ...]:
    """Return findings about a drain or a quarantine that keeps trials away from the host."""
    found = []
    if record.drained:
        message = f"drained: {record.drain_reason}" if record.drain_reason else "drained"
        found.append(
            HostFinding(
                "drained",
                "info",
                message,
                f"`fleetctl hosts undrain {record.name}` allows trials again",
            )
        )
    if record.aside:
        hint = (
            "it is checked again automatically; "
            f"`fleetctl hosts undrain {record.name}` allows trials at once"
        )
        message = f"quarantined after {record.aside}"
        found.append(HostFinding("set_aside", "warning", message, hint))
    return tuple(found)
