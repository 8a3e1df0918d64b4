"""Owns taking an agent away from a host: all that a deploy made there, and nothing else. Loses no
result that no controller has.
"""

from __future__ import annotations

import json
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy import host_commands as do
from fleet_controller.deploy.deploy_context import DeployContext, HostResult
from fleet_controller.deploy.deploy_host import fetch_facts, run_connected
from fleet_controller.deploy.host_commands import HostCommand
from fleet_controller.deploy.host_facts import DAEMON, Installed, ProbeFacts
from fleet_controller.deploy.install_location import UNIT, InstallLocation, choose_location
from fleet_controller.deploy.installer_session import DeployFailed, InstallerSession
from fleet_controller.deploy.plan_executor import output_tail
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_protos.errors import Conflict

STOP_TIMEOUT_S = 150.0
LOG_NAMES = ("agent.log", "agent.log.1", "keeper.log", "keeper.json", "keeper.json.new")


async def undeploy_host(host: FleetHost, context: DeployContext) -> HostResult:
    """All of it; a host's trouble is in the result, whatever it is."""
    return await run_connected(host, context, _undeploy)


async def _undeploy(
    host: FleetHost, context: DeployContext, connection: SshConnection
) -> HostResult:
    facts = await context.run_in_thread(fetch_facts, connection, host)
    found = next((one for one in facts.installed if one.mode), None)
    if found is None:
        return HostResult(host.name, "unchanged", message="nothing of ours is there")
    place = choose_location(host, facts)
    commands = plan_removal(place, found, facts, force=context.force)
    if context.dry_run:
        return HostResult(host.name, "planned", version=found.current, commands=commands)
    python = next((one.path for one in facts.pythons), "python3")
    with await context.run_in_thread(
        InstallerSession, connection, host.name, place, python
    ) as session:
        notes: list[str] = []
        for command in commands:
            context.report_progress(host.name, "removing")
            answer = await context.run_in_thread(session.execute, command)
            notes += _check_answer(host.name, command, answer)
    return HostResult(
        host.name, "removed", version=found.current, commands=commands, notes=tuple(notes)
    )


def plan_removal(
    place: InstallLocation, found: Installed, facts: ProbeFacts, *, force: bool
) -> tuple[HostCommand, ...]:
    """What is to be done: see that nothing is lost, stop the agent, see it again, remove."""
    keeper = (
        next((one.path for one in facts.pythons), "python3"),
        "-I",
        f"{place.root}/keeper.py",
        "stop",
        place.root,
    )
    asking: list[HostCommand] = []
    if found.current in found.versions and found.current and not force:
        asking = [
            do.RequireIdle(
                (
                    f"{place.root}/versions/{found.current}/bin/fleet-agent",
                    "pending",
                    "--state",
                    place.state,
                )
            )
        ]
    if place.mode == DAEMON:
        stopping = (
            [do.RunProgram(keeper, timeout_s=STOP_TIMEOUT_S)]
            if f"{place.root}/keeper.py" in found.files
            else []
        )
        return (*asking, *stopping, *asking, do.RemoveAll(place.root, LOG_NAMES))
    stop = do.RunProgram(place.systemctl("stop", UNIT), timeout_s=STOP_TIMEOUT_S)
    reload = do.RunProgram(place.systemctl("daemon-reload"))
    started = place.unit in found.files
    return (
        *asking,
        *([stop] if started else []),
        *asking,
        do.RemoveAll(place.root, LOG_NAMES),
        *([reload] if started else []),
    )


def _check_answer(host: str, command: HostCommand, answer: Any) -> list[str]:
    """Notes for the user. Raises Conflict when something would be lost, DeployFailed when a program
    failed.
    """
    if isinstance(command, do.RequireIdle):
        _require_nothing_pending(host, answer)
    elif isinstance(command, do.RunProgram) and answer["code"] != 0:
        raise DeployFailed(
            f"host {host}: {command}: {output_tail(answer)}",
            "end it there by hand, then run this again",
        )
    elif isinstance(command, do.RemoveAll):
        return [
            *(f"left, since no deploy made it: {path}" for path in answer["left"]),
            *answer["troubles"],
        ]
    return []


def _require_nothing_pending(host: str, answer: Any) -> None:
    if answer["code"] != 0:
        message = (
            f"host {host}: it is not known what its journal still holds: {output_tail(answer)}"
        )
        raise Conflict(message, "--force removes it all the same")
    pending = json.loads(answer["out"])
    if pending["trials"]:
        message = f"host {host}: {len(pending['trials'])} trials run there ({', '.join(pending['trials'][:3])})"
        raise Conflict(
            message,
            f"wait for them or cancel them (fleetctl hosts drain {host} keeps new ones away); --force ends them",
        )
    if pending["unacknowledged"]:
        message = f"host {host}: {pending['unacknowledged']} events of its journal are stored by no controller yet"
        raise Conflict(
            message,
            "start the controller (fleetctl up) and let it read them; --force throws them away",
        )
    if owed := pending.get("owed"):
        message = f"host {host}: files of {len(owed)} attempts are with no controller yet ({', '.join(owed[:3])})"
        raise Conflict(
            message,
            "start the controller (fleetctl up) and let it fetch them; --force throws them away",
        )
