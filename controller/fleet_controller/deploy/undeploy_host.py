"""Removes from a host the agent and everything that deploys made there, unless results would be
lost.
"""

from __future__ import annotations

import json
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.deploy_context import DeployContext, HostResult
from fleet_controller.deploy.deploy_host import fetch_facts, run_connected
from fleet_controller.deploy.host_commands import HostCommand, RemoveAll, RequireIdle, RunProgram
from fleet_controller.deploy.host_facts import DAEMON, Installed, ProbeFacts
from fleet_controller.deploy.install_location import UNIT, InstallLocation, choose_location
from fleet_controller.deploy.installer_session import DeployFailed, InstallerSession
from fleet_controller.deploy.plan_executor import output_tail
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_protos.errors import Conflict

STOP_TIMEOUT_S = 150.0
LOG_NAMES = ("agent.log", "agent.log.1", "keeper.log", "keeper.json", "keeper.json.new")


async def undeploy_host(host: FleetHost, context: DeployContext) -> HostResult:
    """Remove the agent of a host. If this fails, the result holds the error."""
    return await run_connected(host, context, _undeploy)


async def _undeploy(
    host: FleetHost, context: DeployContext, connection: SshConnection
) -> HostResult:
    facts = await context.run_in_thread(fetch_facts, connection, host)
    found = next((one for one in facts.installed if one.mode), None)
    if found is None:
        return HostResult(host.name, "unchanged", message="no agent is installed there")
    location = choose_location(host, facts)
    commands = plan_removal(location, found, facts, force=context.force)
    if context.dry_run:
        return HostResult(host.name, "planned", version=found.current, commands=commands)
    python = next((one.path for one in facts.pythons), "python3")
    with await context.run_in_thread(
        InstallerSession, connection, host.name, location, python
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
    location: InstallLocation, found: Installed, facts: ProbeFacts, *, force: bool
) -> tuple[HostCommand, ...]:
    """Plan the removal: check that no results would be lost, stop the agent, check again, remove.

    `force` skips the checks.
    """
    keeper = (
        next((one.path for one in facts.pythons), "python3"),
        "-I",
        f"{location.root}/keeper.py",
        "stop",
        location.root,
    )
    asking: list[HostCommand] = []
    if found.current in found.versions and found.current and not force:
        asking = [
            RequireIdle(
                (
                    f"{location.root}/versions/{found.current}/bin/fleet-agent",
                    "pending",
                    "--state",
                    location.state,
                )
            )
        ]
    if location.mode == DAEMON:
        stopping = (
            [RunProgram(keeper, timeout_s=STOP_TIMEOUT_S)]
            if f"{location.root}/keeper.py" in found.files
            else []
        )
        return (*asking, *stopping, *asking, RemoveAll(location.root, LOG_NAMES))
    stop = RunProgram(location.systemctl("stop", UNIT), timeout_s=STOP_TIMEOUT_S)
    reload = RunProgram(location.systemctl("daemon-reload"))
    started = location.unit in found.files
    return (
        *asking,
        *([stop] if started else []),
        *asking,
        RemoveAll(location.root, LOG_NAMES),
        *([reload] if started else []),
    )


def _check_answer(host: str, command: HostCommand, answer: Any) -> list[str]:
    """Return notes for the user about the answer to a command.

    Raises Conflict if results would be lost. Raises DeployFailed if a program failed.
    """
    if isinstance(command, RequireIdle):
        _require_nothing_pending(host, answer)
    elif isinstance(command, RunProgram) and answer["code"] != 0:
        raise DeployFailed(
            f"host {host}: {command}: {output_tail(answer)}",
            "do this on the host by hand, then run the command again",
        )
    elif isinstance(command, RemoveAll):
        return [
            *(f"not removed, since no deploy made it: {path}" for path in answer["left"]),
            *answer["troubles"],
        ]
    return []


def _require_nothing_pending(host: str, answer: Any) -> None:
    if answer["code"] != 0:
        raise Conflict(
            f"host {host}: cannot read what the agent's journal still holds: {output_tail(answer)}",
            "--force removes the agent in any case",
        )
    pending = json.loads(answer["out"])
    if trials := pending["trials"]:
        count, examples = len(trials), ", ".join(trials[:3])
        raise Conflict(
            f"host {host}: {count} trials are running there ({examples})",
            "wait until they end, or cancel their jobs; --force ends them."
            f" `fleetctl hosts drain {host}` keeps new trials away",
        )
    if count := pending["unacknowledged"]:
        raise Conflict(
            f"host {host}: no controller has stored the last {count} events of the agent's journal",
            "run `fleetctl up` and let the controller read them; --force deletes them",
        )
    if owed := pending.get("owed"):
        count, examples = len(owed), ", ".join(owed[:3])
        raise Conflict(
            f"host {host}: no controller has fetched the files of {count} attempts ({examples})",
            "run `fleetctl up` and let the controller fetch them; --force deletes them",
        )
