"""Owns `fleetctl up` with a fleet file: a controller in the foreground that follows its hosts, and
no agent here. Deploys nothing.
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
from fleet_controller.cli.commands.lint import finding_lines
from fleet_controller.cli.local_controller import (
    LocalMachine,
    log_to_file,
    require_no_other_controller,
)
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.interrupts import Interrupts
from fleet_controller.cli.terminal.live_display import ProgressDisplay, progress_display
from fleet_controller.core.controller_api import HostStatus
from fleet_controller.fleet_file.fleet_loader import load_fleet_file
from fleet_controller.hosts.target_access import fleet_targets
from fleet_controller.pki.trust_path import trust_folder_path
from fleet_protos.errors import ExitCode

_MAX_LISTED = 10


async def run_fleet_controller(
    arguments: argparse.Namespace, this_machine: LocalMachine, file: Path, console: Console
) -> int:
    """Until Ctrl-C. Raises FleetRejected, Conflict when a controller is at work in the state
    folder, ConfigError.
    """
    loaded = load_fleet_file(file)
    console.print_stderr(*finding_lines(loaded.findings, console))
    require_no_other_controller(this_machine.state_folder)
    trust = trust_folder_path(arguments.trust, this_machine.state_folder.path)
    follow = fleet_targets((), loaded.inventory, trust)
    log_to_file(this_machine.state_folder)
    doors = replace(this_machine.doors, trust=trust if trust.is_dir() else None)
    with progress_display() as display:
        interrupts = Interrupts(lambda: _exit_at_once(display))
        with interrupts.handle_signals():
            async with start_controller(
                this_machine.state_folder.controller, follow, endpoints=doors
            ) as at_work:
                await at_work.fleet.wait_for_agents()
                console.print_stderr(
                    f"controller at {at_work.address}",
                    *connected_hosts_lines(await at_work.fleet.hosts(), str(file)),
                )
                console.print_stderr("fleetctl submit FILE --watch hands it a job; Ctrl-C ends it")
                with _fleet_file_reloads(at_work, display):
                    await interrupts.stop_requested.wait()
                display.print_line(
                    "ending: files that are still owed are fetched; Ctrl-C again leaves at once"
                )
    console.print_stderr(
        "ended; trials that run on the hosts go on, and the next controller reads on"
    )
    return ExitCode.DONE


def connected_hosts_lines(hosts: Sequence[HostStatus], file: str) -> list[str]:
    """How many hosts answer, and why the others do not."""
    silent = [host for host in hosts if host.state != "connected"]
    lines = [f"{file}: {len(hosts) - len(silent)} of {len(hosts)} hosts connected"]
    lines += [f"  {host.host}: {host.message}" for host in silent[:_MAX_LISTED]]
    if len(silent) > _MAX_LISTED:
        lines.append(f"  and {len(silent) - _MAX_LISTED} more: fleetctl hosts ls")
    return lines


@contextmanager
def _fleet_file_reloads(at_work: RunningController, display: ProgressDisplay) -> Iterator[None]:
    """While inside, changes of the fleet file are told here, and SIGHUP has it read again."""
    if at_work.fleet_file is not None:
        at_work.fleet_file.report = display.print_line
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, at_work.fleet_file.read_now)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


def _exit_at_once(display: ProgressDisplay) -> None:
    """The second Ctrl-C: nothing here needs an end of its own."""
    display.close()
    os._exit(ExitCode.FAILED)
