"""Implements `fleetctl hosts` with its actions ls, show, check, drain, undrain and revoke."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from difflib import get_close_matches

from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.trust_setup import certificate_count, open_authority
from fleet_controller.core.controller_api import Controller, HostCheck, HostStatus, error_messages
from fleet_controller.report.host_check_output import (
    check_hint_lines,
    check_line,
    checks_json,
    checks_table,
)
from fleet_controller.report.host_output import host_json, host_lines, hosts_json, hosts_table
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.errors import ConfigError, ExitCode, NotFound

Action = Callable[[Controller, argparse.Namespace, Console], Awaitable[int]]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the action of `arguments` and return the exit code."""
    if arguments.action == "revoke":  # changes the trust folder, so it needs no controller
        return _revoke(arguments, console)
    return asyncio.run(_run(_ACTIONS[arguments.action], arguments, console))


async def _run(action: Action, arguments: argparse.Namespace, console: Console) -> int:
    async with open_controller(arguments, must_run=True) as controller:
        return await action(controller, arguments, console)


async def _ls(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    if arguments.hosts:
        raise ConfigError(
            "hosts ls takes no host names",
            f"`fleetctl hosts show {arguments.hosts[0]}` shows one host",
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
    names = _required_hosts(arguments)
    known = await controller.hosts()
    shown = [_find_host(known, name) for name in names]
    if arguments.json:
        console.print_json({"version": 1, "hosts": [host_json(host) for host in shown]})
        return ExitCode.DONE
    for number, host in enumerate(shown):
        console.print_lines([*([""] if number else []), *host_lines(host)])
    return ExitCode.DONE


def _find_host(hosts: tuple[HostStatus, ...], name: str) -> HostStatus:
    """Return the host of that name. Raises NotFound, which suggests the closest name."""
    for host in hosts:
        if host.host == name:
            return host
    near = get_close_matches(name, [host.host for host in hosts], n=1)
    raise NotFound(
        f"there is no host {name}",
        f"did you mean {near[0]}?" if near else "`fleetctl hosts ls` lists all hosts",
    )


async def check(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    """Check the named hosts, or all hosts without names, and print what prevents trials on them.

    Return UNREACHABLE when a host is not reached, else FAILED when a host has an error.
    """
    checks: list[HostCheck] = []
    async for found in controller.check_hosts(arguments.hosts):
        checks.append(found)
        console.print_stderr(check_line(found))
    checks.sort(key=lambda found: found.host)
    if arguments.json:
        console.print_json(checks_json(checks))
    elif not checks:
        console.print_stderr("no hosts yet")
    else:
        console.print_text(table_text(checks_table(checks), console.width, console.colour))
        console.print_lines(check_hint_lines(checks))
    if not all(found.reached for found in checks):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if any(error_messages(found) for found in checks) else ExitCode.DONE


async def drain(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    """Stop starting trials on the named hosts. Running trials finish."""
    for host in _required_hosts(arguments):
        await controller.drain(host, arguments.reason)
    return await _print_drain_state(controller, arguments, console)


async def undrain(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    """Start trials on the named hosts again. This also ends a quarantine after failures."""
    if arguments.reason:
        raise ConfigError("hosts undrain takes no --reason", "leave the option out")
    for host in _required_hosts(arguments):
        await controller.undrain(host)
    return await _print_drain_state(controller, arguments, console)


def _required_hosts(arguments: argparse.Namespace) -> list[str]:
    hosts: list[str] = arguments.hosts
    if not hosts:
        raise ConfigError(
            f"hosts {arguments.action} needs the name of a host",
            "`fleetctl hosts ls` lists all hosts",
        )
    return hosts


async def _print_drain_state(
    controller: Controller, arguments: argparse.Namespace, console: Console
) -> int:
    shown = [host for host in await controller.hosts() if host.host in arguments.hosts]
    if arguments.json:
        host_rows = [
            {"host": host.host, "drained": host.drained, "active_trial": host.active_trial}
            for host in shown
        ]
        console.print_json({"version": 1, "hosts": host_rows})
        return ExitCode.DONE
    for host in shown:
        state = "drained, starts no new trials" if host.drained else "takes trials"
        finishing = (
            f"; {host.active_trial} runs to its end" if host.drained and host.active_trial else ""
        )
        console.print_lines([f"{host.host}: {state}{finishing}"])
    return ExitCode.DONE


def _revoke(arguments: argparse.Namespace, console: Console) -> int:
    if not arguments.hosts:
        raise ConfigError(
            "hosts revoke needs the name of a host", "`fleetctl trust show` lists certificates"
        )
    authority = open_authority(arguments)
    for host in arguments.hosts:
        certificates = certificate_count(authority.revoke(host, arguments.reason))
        console.print_stderr(
            f"host {host}: {certificates} revoked;"
            " the controller stops talking to this host, even if the controller is running now"
        )
    console.print_stderr(
        f"`fleetctl deploy {' '.join(arguments.hosts)}` would issue a new certificate"
    )
    return ExitCode.DONE


_ACTIONS: dict[str, Action] = {
    "ls": _ls,
    "show": _show,
    "check": check,
    "drain": drain,
    "undrain": undrain,
}
