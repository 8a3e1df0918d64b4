"""Owns `fleetctl hosts drain`, `undrain` and `check`: told or asked through the controller. Reaches
no host itself.
"""

from __future__ import annotations

import argparse

from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import Controller, HostCheck
from fleet_controller.report.host_check_output import (
    check_hint_lines,
    check_line,
    checks_json,
    checks_table,
)
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.errors import ConfigError, ExitCode


async def drain(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    """No new trials on these hosts; what runs there goes on to its end."""
    for host in _required_hosts(arguments, "drain"):
        await controller.drain(host, arguments.reason)
    return await _print_drain_state(controller, arguments, console)


async def undrain(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    """Trials again, also where failures had set a host aside."""
    if arguments.reason:
        raise ConfigError("hosts undrain takes no --reason", "leave it out")
    for host in _required_hosts(arguments, "undrain"):
        await controller.undrain(host)
    return await _print_drain_state(controller, arguments, console)


async def check(controller: Controller, arguments: argparse.Namespace, console: Console) -> int:
    """A look at these hosts, or at all: 3 when one is not reached, 1 when something stands in the
    way of trials on one.
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
    return ExitCode.FAILED if any(found.errors for found in checks) else ExitCode.DONE


def _required_hosts(arguments: argparse.Namespace, action: str) -> list[str]:
    hosts: list[str] = arguments.hosts
    if not hosts:
        raise ConfigError(
            f"hosts {action} needs the name of a host", "fleetctl hosts ls lists them"
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
        goes_on = (
            f"; {host.active_trial} goes on to its end"
            if host.drained and host.active_trial
            else ""
        )
        console.print_lines(
            [f"{host.host}: {'no new trials' if host.drained else 'takes trials'}{goes_on}"]
        )
    return ExitCode.DONE
