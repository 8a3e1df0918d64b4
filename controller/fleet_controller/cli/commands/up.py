"""Owns `fleetctl up` with a fleet file: a controller in the foreground that follows its hosts, and no agent here. Deploys nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fleet_controller.app.bootstrap import Working, working
from fleet_controller.cli.commands.lint import finding_lines
from fleet_controller.cli.local_controller import Here, log_to_file, refuse_a_second
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.interrupts import Interrupts
from fleet_controller.cli.terminal.live_display import Display, progress_display
from fleet_controller.core.controller_api import HostStatus
from fleet_controller.fleet_file.fleet_loader import load_fleet_file
from fleet_controller.hosts.target_access import following
from fleet_controller.pki.trust_path import trust_folder
from fleet_protos.errors import ExitCode

_MOST_TOLD = 10


async def up(arguments: argparse.Namespace, place: Here, file: Path, console: Console) -> int:
    """Until Ctrl-C. Raises FleetRejected, Conflict when a controller is at work in the state folder, ConfigError."""
    loaded = load_fleet_file(file)
    console.tell(*finding_lines(loaded.findings, console))
    refuse_a_second(place.home)
    trust = trust_folder(arguments.trust, place.home.state)
    follow = following((), loaded.inventory, trust)
    log_to_file(place.home)
    doors = replace(place.doors, trust=trust if trust.is_dir() else None)
    with progress_display() as shown:
        interrupts = Interrupts(lambda: _leave(shown))
        with interrupts.installed():
            async with working(place.home.controller, follow, doors=doors) as at_work:
                await at_work.fleet.expect_agents()
                console.tell(f"controller at {at_work.address}", *contact_lines(await at_work.fleet.hosts(), str(file)))
                console.tell("fleetctl submit FILE --watch hands it a job; Ctrl-C ends it")
                with _rereading(at_work, shown):
                    await interrupts.asked.wait()
                shown.say("ending: files that are still owed are fetched; Ctrl-C again leaves at once")
    console.tell("ended; trials that run on the hosts go on, and the next controller reads on")
    return ExitCode.DONE


def contact_lines(hosts: Sequence[HostStatus], file: str) -> list[str]:
    """How many hosts answer, and why the others do not."""
    silent = [host for host in hosts if host.state != "connected"]
    lines = [f"{file}: {len(hosts) - len(silent)} of {len(hosts)} hosts connected"]
    lines += [f"  {host.host}: {host.message}" for host in silent[:_MOST_TOLD]]
    if len(silent) > _MOST_TOLD:
        lines.append(f"  and {len(silent) - _MOST_TOLD} more: fleetctl hosts ls")
    return lines


@contextmanager
def _rereading(at_work: Working, shown: Display) -> Iterator[None]:
    """While inside, changes of the fleet file are told here, and SIGHUP has it read again."""
    if at_work.fleet_file is not None:
        at_work.fleet_file.say = shown.say
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, at_work.fleet_file.read_now)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


def _leave(shown: Display) -> None:
    """The second Ctrl-C: nothing here needs an end of its own."""
    shown.end()
    os._exit(ExitCode.ANSWER_IS_BAD)
