"""Owns taking an agent away from a host: all that a deploy made there, and nothing else. Loses no result that no controller has."""

from __future__ import annotations

import json
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy import host_commands as do
from fleet_controller.deploy.deploy_context import HostResult, Tools
from fleet_controller.deploy.deploy_host import read_facts, told
from fleet_controller.deploy.host_commands import Command
from fleet_controller.deploy.host_facts import DAEMON, Facts, Installed
from fleet_controller.deploy.install_location import UNIT, Place, place_of
from fleet_controller.deploy.installer_session import DeployFailed, Session
from fleet_controller.deploy.plan_executor import last_words
from fleet_controller.ssh.ssh_connection import Connection
from fleet_protos.errors import Conflict

STOP_S = 150.0
LOGS = ("agent.log", "agent.log.1", "keeper.log", "keeper.json", "keeper.json.new")


async def undeploy_host(host: FleetHost, tools: Tools) -> HostResult:
    """All of it; a host's trouble is in the result, whatever it is."""
    return await told(host, tools, _undeploy)


async def _undeploy(host: FleetHost, tools: Tools, connection: Connection) -> HostResult:
    facts = await tools.blocking(read_facts, connection, host)
    found = next((one for one in facts.installed if one.mode), None)
    if found is None:
        return HostResult(host.name, "unchanged", message="nothing of ours is there")
    place = place_of(host, facts)
    commands = plan_removal(place, found, facts, force=tools.force)
    if tools.dry_run:
        return HostResult(host.name, "planned", version=found.current, commands=commands)
    python = next((one.path for one in facts.pythons), "python3")
    with await tools.blocking(Session, connection, host.name, place, python) as session:
        notes: list[str] = []
        for command in commands:
            tools.say(host.name, "removing")
            answer = await tools.blocking(session.carry_out, command)
            notes += _judge(host.name, command, answer)
    return HostResult(host.name, "removed", version=found.current, commands=commands, notes=tuple(notes))


def plan_removal(place: Place, found: Installed, facts: Facts, *, force: bool) -> tuple[Command, ...]:
    """What is to be done: see that nothing is lost, stop the agent, see it again, remove."""
    keeper = (next((one.path for one in facts.pythons), "python3"), "-I", f"{place.root}/keeper.py", "stop", place.root)
    asking: list[Command] = []
    if found.current in found.versions and found.current and not force:
        asking = [do.RequireIdle((f"{place.root}/versions/{found.current}/bin/fleet-agent", "pending", "--state", place.state))]
    if place.mode == DAEMON:
        stopping = [do.RunProgram(keeper, timeout_s=STOP_S)] if f"{place.root}/keeper.py" in found.files else []
        return (*asking, *stopping, *asking, do.RemoveAll(place.root, LOGS))
    stop = do.RunProgram(place.systemctl("stop", UNIT), timeout_s=STOP_S)
    reload = do.RunProgram(place.systemctl("daemon-reload"))
    started = place.unit in found.files
    return (*asking, *([stop] if started else []), *asking, do.RemoveAll(place.root, LOGS), *([reload] if started else []))


def _judge(host: str, command: Command, answer: Any) -> list[str]:
    """Notes for the user. Raises Conflict when something would be lost, DeployFailed when a program failed."""
    if isinstance(command, do.RequireIdle):
        _require_nothing_pending(host, answer)
    elif isinstance(command, do.RunProgram) and answer["code"] != 0:
        raise DeployFailed(f"host {host}: {command}: {last_words(answer)}", "end it there by hand, then run this again")
    elif isinstance(command, do.RemoveAll):
        return [*(f"left, since no deploy made it: {path}" for path in answer["left"]), *answer["troubles"]]
    return []


def _require_nothing_pending(host: str, answer: Any) -> None:
    if answer["code"] != 0:
        told = f"host {host}: it is not known what its journal still holds: {last_words(answer)}"
        raise Conflict(told, "--force removes it all the same")
    pending = json.loads(answer["out"])
    if pending["trials"]:
        told = f"host {host}: {len(pending['trials'])} trials run there ({', '.join(pending['trials'][:3])})"
        raise Conflict(told, f"wait for them or cancel them (fleetctl hosts drain {host} keeps new ones away); --force ends them")
    if pending["unacknowledged"]:
        told = f"host {host}: {pending['unacknowledged']} events of its journal are stored by no controller yet"
        raise Conflict(told, "start the controller (fleetctl up) and let it read them; --force throws them away")
    if owed := pending.get("owed"):
        told = f"host {host}: files of {len(owed)} attempts are with no controller yet ({', '.join(owed[:3])})"
        raise Conflict(told, "start the controller (fleetctl up) and let it fetch them; --force throws them away")



