"""Owns doing one thing to many hosts at once, a bounded number at a time, and what comes of all of them. Knows no host's details."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.deploy.deploy_context import HostResult, Tools
from fleet_protos.errors import ConfigError, ExitCode, NotFound

Work = Callable[[FleetHost, Tools], Awaitable[HostResult]]


def chosen(inventory: Inventory, names: Sequence[str]) -> tuple[FleetHost, ...]:
    """The hosts that a command means: those named, else all. Raises NotFound that names what there is."""
    missing = [name for name in names if inventory.host(name) is None]
    if missing:
        known = ", ".join(host.name for host in inventory.hosts)
        raise NotFound(f"{inventory.file}: no host {', '.join(missing)}", f"there are: {known}")
    hosts = [host for name in dict.fromkeys(names) if (host := inventory.host(name))] if names else list(inventory.hosts)
    if not hosts:
        raise ConfigError(f"{inventory.file}: there are no hosts in it", "write them under `hosts:`")
    return tuple(hosts)


async def everywhere(hosts: Sequence[FleetHost], work: Work, tools: Tools, at_once: int) -> tuple[HostResult, ...]:
    """Every host's result, in the order of the hosts; one host's trouble stops no other."""
    turns = asyncio.Semaphore(at_once)

    async def one(host: FleetHost) -> HostResult:
        async with turns:
            result = await work(host, tools)
        tools.say(host.name, ending(result))
        return result

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(host)) for host in hosts]
    except BaseExceptionGroup as group:  # every trouble of a host is in its result: what arrives here is a bug, told as the one that it is
        raise group.exceptions[0] from None
    return tuple(task.result() for task in running)


def pool(hosts: int, at_once: int) -> ThreadPoolExecutor:
    """Threads for that many hosts at a time."""
    return ThreadPoolExecutor(max_workers=max(1, min(hosts, at_once)) + 1, thread_name_prefix="deploy")


def ending(result: HostResult) -> str:
    """The last line of a host's progress."""
    words = {"rolled_back": "ROLLED BACK", "failed": "FAILED", "planned": f"{len(result.commands)} commands"}
    told = words.get(result.state, result.state)
    version = f", version {result.version}" if result.version and result.state in ("changed", "unchanged") else ""
    return f"{told}{version} ({result.seconds:.1f} s)"


def exit_code(results: Sequence[HostResult]) -> int:
    """0 when all is well, else the worst of what befell: a bug, something to edit, a host out of reach, a failure."""
    codes = {result.exit_code for result in results}
    order = (ExitCode.BUG, ExitCode.USER_MUST_EDIT, ExitCode.UNREACHABLE, ExitCode.ANSWER_IS_BAD)
    return next((code for code in order if code in codes), ExitCode.DONE)
