"""Implements `fleetctl up`: runs a controller in the foreground, for the hosts of the fleet file or
with an agent on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fleet_controller.app.bootstrap import RunningController, start_controller
from fleet_controller.cli.local_controller import (
    LocalMachine,
    local_agent,
    local_machine,
    log_to_file,
    require_no_other_controller,
    run_local_controller,
)
from fleet_controller.cli.local_run import exit_at_once
from fleet_controller.cli.missing_extras import require_agent_extra
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.finding_lines import finding_lines
from fleet_controller.cli.terminal.interrupts import Interrupts
from fleet_controller.cli.terminal.live_display import ProgressDisplay, progress_display
from fleet_controller.core.controller_api import Controller, HostStatus
from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
from fleet_controller.fleet_file.fleet_loader import load_fleet_file
from fleet_controller.hosts.target_access import fleet_targets
from fleet_controller.pki.trust_path import trust_folder_path
from fleet_protos.errors import ExitCode

_MAX_LISTED = 10
_CONNECT_POLLS = 200
_CONNECT_POLL_S = 0.05


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run a controller until Ctrl-C or SIGTERM."""
    file = None if arguments.local else find_fleet_file(arguments.fleet)
    if file is None:
        require_agent_extra()
    this_machine = local_machine(arguments)
    return asyncio.run(
        _run_with_local_agent(this_machine, console)
        if file is None
        else _run_fleet_controller(arguments, this_machine, file, console)
    )


async def _run_fleet_controller(
    arguments: argparse.Namespace, this_machine: LocalMachine, file: Path, console: Console
) -> int:
    """Run the controller of a fleet file.

    Raises FleetRejected for a wrong file. Raises Conflict if another controller works in the state
    folder. Raises ConfigError for wrong settings.
    """
    loaded = load_fleet_file(file)
    console.print_stderr(*finding_lines(loaded.findings, console))
    require_no_other_controller(this_machine.state_folder)
    trust = trust_folder_path(arguments.trust, this_machine.state_folder.path)
    targets = fleet_targets((), loaded.inventory, trust)
    log_to_file(this_machine.state_folder)
    endpoints = replace(this_machine.endpoints, trust=trust if trust.is_dir() else None)
    with progress_display() as display:
        interrupts = Interrupts(lambda: _exit_at_once(display))
        with interrupts.handle_signals():
            async with start_controller(
                this_machine.state_folder.controller, targets, endpoints=endpoints
            ) as running:
                await running.fleet.wait_for_agents()
                console.print_stderr(
                    f"controller at {running.address}",
                    *connected_hosts_lines(await running.fleet.hosts(), str(file)),
                    "submit a job with `fleetctl submit FILE --watch`; Ctrl-C stops the controller",
                )
                with _fleet_file_reloads(running, display):
                    await interrupts.stop_requested.wait()
                display.print_line(
                    "stopping: fetching the remaining files of finished trials; press Ctrl-C again"
                    " to leave at once"
                )
    console.print_stderr(
        "stopped; running trials continue on their hosts, and the next controller follows them"
    )
    return ExitCode.DONE


def connected_hosts_lines(hosts: Sequence[HostStatus], file: str) -> list[str]:
    """Return a line with the number of connected hosts, and a line for each host that is not
    connected. At most ten hosts get a line.
    """
    missing = [host for host in hosts if host.state != "connected"]
    lines = [f"{file}: {len(hosts) - len(missing)} of {len(hosts)} hosts connected"]
    lines += [f"  {host.host}: {host.message}" for host in missing[:_MAX_LISTED]]
    if len(missing) > _MAX_LISTED:
        lines.append(f"  and {len(missing) - _MAX_LISTED} more: see `fleetctl hosts ls`")
    return lines


@contextmanager
def _fleet_file_reloads(running: RunningController, display: ProgressDisplay) -> Iterator[None]:
    """Report changes of the fleet file on the display, and reload it at SIGHUP, while inside."""
    if running.fleet_file is not None:
        running.fleet_file.report = display.print_line
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, running.fleet_file.read_now)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


def _exit_at_once(display: ProgressDisplay) -> None:
    """Leave at once at the second Ctrl-C. This process owns nothing that must be stopped first."""
    display.close()
    os._exit(ExitCode.FAILED)


async def _run_with_local_agent(this_machine: LocalMachine, console: Console) -> int:
    agent = local_agent(this_machine)
    with progress_display() as display:
        interrupts = Interrupts(lambda: exit_at_once(agent, display))
        with interrupts.handle_signals():
            async with run_local_controller(agent, this_machine, display.print_line) as running:
                await _wait_for_local_agent(running.fleet)
                console.print_stderr(
                    f"controller at {running.address},"
                    f" local agent (pid {agent.pid}) as host {agent.config.host_name}",
                    "submit a job with `fleetctl submit FILE --watch`;"
                    " Ctrl-C stops the controller and the agent",
                )
                await interrupts.stop_requested.wait()
                display.print_line(
                    "stopping: ending all servers; press Ctrl-C again to leave at once"
                )
                await running.fleet.interrupt()
    console.print_stderr(
        "stopped; no server is left running; the next `fleetctl up` continues unfinished jobs"
    )
    return ExitCode.DONE


async def _wait_for_local_agent(controller: Controller) -> None:
    """Wait up to 10 s for the local agent to connect, so that the first submit finds it.

    After that time `fleetctl hosts` shows what is wrong.
    """
    for _ in range(_CONNECT_POLLS):
        if all(host.state == "connected" for host in await controller.hosts()):
            return
        await asyncio.sleep(_CONNECT_POLL_S)
