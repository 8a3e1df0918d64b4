"""Runs the work of a command on many hosts at once, and sums up the results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.deploy.deploy_context import DeployContext, HostResult
from fleet_protos.errors import ConfigError, ExitCode, NotFound, first_error

HostWork = Callable[[FleetHost, DeployContext], Awaitable[HostResult]]


def select_hosts(inventory: Inventory, names: Sequence[str]) -> tuple[FleetHost, ...]:
    """Return the named hosts, or all hosts when no name is given.

    Raises NotFound, which lists the known hosts, for an unknown name. Raises ConfigError for an
    empty fleet file.
    """
    missing = [name for name in names if inventory.host(name) is None]
    if missing:
        known = ", ".join(host.name for host in inventory.hosts)
        raise NotFound(f"{inventory.file}: no host {', '.join(missing)}", f"known hosts: {known}")
    hosts = (
        [host for name in dict.fromkeys(names) if (host := inventory.host(name))]
        if names
        else list(inventory.hosts)
    )
    if not hosts:
        raise ConfigError(f"{inventory.file}: the file has no hosts", "list them under `hosts:`")
    return tuple(hosts)


async def run_on_hosts(
    hosts: Sequence[FleetHost], host_work: HostWork, context: DeployContext, at_once: int
) -> tuple[HostResult, ...]:
    """Run the work on every host, `at_once` at a time, and return the results in host order.

    A failed host does not stop the others.
    """
    slots = asyncio.Semaphore(at_once)

    async def run_one(host: FleetHost) -> HostResult:
        async with slots:
            result = await host_work(host, context)
        context.report_progress(host.name, result_line(result))
        return result

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run_one(host)) for host in hosts]
    # Errors of a host are in its result, so anything that arrives here is a bug.
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return tuple(task.result() for task in running)


def deploy_threads(hosts: int, at_once: int) -> ThreadPoolExecutor:
    """Return a pool with enough threads for `at_once` hosts."""
    return ThreadPoolExecutor(
        max_workers=max(1, min(hosts, at_once)) + 1, thread_name_prefix="deploy"
    )


def result_line(result: HostResult) -> str:
    """Format a result as the last progress line of its host."""
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
    """Return DONE if all hosts succeeded, else the worst code. BUG is the worst, then USAGE_ERROR,
    UNREACHABLE and FAILED.
    """
    codes = {result.exit_code for result in results}
    order = (ExitCode.BUG, ExitCode.USAGE_ERROR, ExitCode.UNREACHABLE, ExitCode.FAILED)
    return next((code for code in order if code in codes), ExitCode.DONE)
