"""Owns doing one thing to many hosts at once, a bounded number at a time, and what comes of all of
them. Knows no host's details.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.deploy.deploy_context import DeployContext, HostResult
from fleet_protos.errors import ConfigError, ExitCode, NotFound, first_error

HostWork = Callable[[FleetHost, DeployContext], Awaitable[HostResult]]


def select_hosts(inventory: Inventory, names: Sequence[str]) -> tuple[FleetHost, ...]:
    """The hosts that a command means: those named, else all. Raises NotFound that names what there
    is.
    """
    missing = [name for name in names if inventory.host(name) is None]
    if missing:
        known = ", ".join(host.name for host in inventory.hosts)
        raise NotFound(f"{inventory.file}: no host {', '.join(missing)}", f"there are: {known}")
    hosts = (
        [host for name in dict.fromkeys(names) if (host := inventory.host(name))]
        if names
        else list(inventory.hosts)
    )
    if not hosts:
        raise ConfigError(
            f"{inventory.file}: there are no hosts in it", "write them under `hosts:`"
        )
    return tuple(hosts)


async def run_on_hosts(
    hosts: Sequence[FleetHost], host_work: HostWork, context: DeployContext, at_once: int
) -> tuple[HostResult, ...]:
    """Every host's result, in the order of the hosts; one host's trouble stops no other."""
    slots = asyncio.Semaphore(at_once)

    async def run_one(host: FleetHost) -> HostResult:
        async with slots:
            result = await host_work(host, context)
        context.report_progress(host.name, result_line(result))
        return result

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run_one(host)) for host in hosts]
    # every trouble of a host is in its result: what arrives here is a bug, told as the one that it
    # is
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return tuple(task.result() for task in running)


def deploy_threads(hosts: int, at_once: int) -> ThreadPoolExecutor:
    """Threads for that many hosts at a time."""
    return ThreadPoolExecutor(
        max_workers=max(1, min(hosts, at_once)) + 1, thread_name_prefix="deploy"
    )


def result_line(result: HostResult) -> str:
    """The last line of a host's progress."""
    words = {
        "rolled_back": "ROLLED BACK",
        "failed": "FAILED",
        "planned": f"{len(result.commands)} commands",
    }
    state_text = words.get(result.state, result.state)
    version = (
        f", version {result.version}"
        if result.version and result.state in ("changed", "unchanged")
        else ""
    )
    return f"{state_text}{version} ({result.seconds:.1f} s)"


def exit_code(results: Sequence[HostResult]) -> int:
    """0 when all is well, else the worst of what befell: a bug, something to edit, a host out of
    reach, a failure.
    """
    codes = {result.exit_code for result in results}
    order = (ExitCode.BUG, ExitCode.USAGE_ERROR, ExitCode.UNREACHABLE, ExitCode.FAILED)
    return next((code for code in order if code in codes), ExitCode.DONE)
