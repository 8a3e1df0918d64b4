"""Owns `fleetctl hosts` with its actions, and the two that ask the controller once and print what
it knows. Reaches no host.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from difflib import get_close_matches

from fleet_controller.cli.commands.hosts_drain import check, drain, undrain
from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import Controller, HostStatus
from fleet_controller.report.host_output import host_json, host_lines, hosts_json, hosts_table
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.errors import ConfigError, ExitCode, NotFound

Action = Callable[[Controller, argparse.Namespace, Console], Awaitable[int]]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One action, by name."""
    if arguments.action == "revoke":  # a matter of the trust folder: no controller is asked
        from fleet_controller.cli.commands.trust import revoke_hosts

        return revoke_hosts(arguments, console)
    return asyncio.run(_run(_ACTIONS[arguments.action], arguments, console))


async def _run(action: Action, arguments: argparse.Namespace, console: Console) -> int:
    async with open_controller(arguments) as controller:
        return await action(controller, arguments, console)


async def _ls(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    if arguments.hosts:
        raise ConfigError(
            "hosts ls takes no names", f"fleetctl hosts show {arguments.hosts[0]} shows one"
        )
    hosts = await controller.hosts()
    if arguments.json:
        console.print_json(hosts_json(hosts))
    elif hosts:
        console.print_text(
            table_text(hosts_table(hosts, time.time_ns() / 1e9), console.width, console.colour)
        )
    else:
        console.print_stderr("no hosts yet")
    return ExitCode.DONE


async def _show(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    if not arguments.hosts:
        raise ConfigError("hosts show needs the name of a host", "fleetctl hosts ls lists them")
    known = await controller.hosts()
    shown = [find_host(known, name) for name in arguments.hosts]
    if arguments.json:
        console.print_json({"version": 1, "hosts": [host_json(host) for host in shown]})
        return ExitCode.DONE
    for number, host in enumerate(shown):
        console.print_lines([*([""] if number else []), *host_lines(host)])
    return ExitCode.DONE


def find_host(hosts: tuple[HostStatus, ...], name: str) -> HostStatus:
    """The host of that name. Raises NotFound with the nearest one."""
    for host in hosts:
        if host.host == name:
            return host
    near = get_close_matches(name, [host.host for host in hosts], n=1)
    raise NotFound(
        f"there is no host {name}",
        f"did you mean {near[0]}?" if near else "fleetctl hosts ls lists them",
    )


_ACTIONS: dict[str, Action] = {
    "ls": _ls,
    "show": _show,
    "drain": drain,
    "undrain": undrain,
    "check": check,
}
