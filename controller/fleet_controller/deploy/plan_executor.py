"""Executes a plan on one host, and rolls back if the new agent is not healthy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.agent_health import DeployedAgent, Unhealthy, wait_healthy
from fleet_controller.deploy.deploy_context import DeployContext, HostResult, PlannedDeploy
from fleet_controller.deploy.host_commands import (
    CheckHealth,
    HostCommand,
    RequireIdle,
    RunProgram,
    SendWheel,
)
from fleet_controller.deploy.host_facts import DAEMON
from fleet_controller.deploy.install_location import UNIT
from fleet_controller.deploy.installer_session import DeployFailed, InstallerSession
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_protos.errors import Conflict

HEALTH_TIMEOUT_S = 60.0


def output_tail(answer: Any) -> str:
    """Return the last lines of a program's errors or output, for a message."""
    return " / ".join((answer["error"] or answer["out"]).strip().splitlines()[-3:])


class PlanExecutor:
    """Executes the plan of one host in an open installer session."""

    def __init__(
        self,
        host: FleetHost,
        context: DeployContext,
        connection: SshConnection,
        session: InstallerSession,
        planned: PlannedDeploy,
    ) -> None:
        self._host = host
        self._context = context
        self._connection = connection
        self._session = session
        self._wanted = planned.wanted
        self._plan = planned.plan

    async def execute(self) -> HostResult:
        """Run all commands in order. Roll back if the new agent is not healthy.

        Raises Conflict if trials are running. Raises DeployFailed if a command failed. Raises
        HostUnreachable if the connection ended.
        """
        to_send = sum(
            command.size for command in self._plan.commands if isinstance(command, SendWheel)
        )
        sent = 0
        for command in self._plan.commands:
            if isinstance(command, SendWheel):
                sent_mb, total_mb = sent / 1e6, to_send / 1e6
                self._context.report_progress(
                    self._host.name, f"copying {sent_mb:.0f} of {total_mb:.0f} MB"
                )
                sent += command.size
            try:
                await self._execute_command(command)
            except Unhealthy as error:
                return await self._roll_back(error)
        return HostResult(
            self._host.name,
            "changed",
            version=self._plan.version,
            commands=self._plan.commands,
            notes=self._plan.notes,
        )

    async def _execute_command(self, command: HostCommand) -> None:
        if isinstance(command, CheckHealth):
            self._context.report_progress(self._host.name, "waiting for the agent")
            return await self._check_health(command.version, HEALTH_TIMEOUT_S)
        answer = await self._context.run_in_thread(self._session.execute, command)
        if isinstance(command, RequireIdle):
            self._require_idle(answer)
        elif isinstance(command, RunProgram) and (code := answer["code"]) != 0:
            tail = output_tail(answer)
            if not command.restarts:
                raise DeployFailed(
                    f"host {self._host.name}: {command}: the exit code is {code}: {tail}",
                    command.hint,
                )
            raise Unhealthy(f"the agent of {self._host.name} could not be started: {tail}")

    def _require_idle(self, answer: Any) -> None:
        name = self._host.name
        if answer["code"] != 0:
            error = answer["error"].strip()[-300:]
            raise Conflict(
                f"host {name}: cannot find out whether trials are running there: {error}",
                "check the agent's journal; --force restarts the agent in any case",
            )
        trials = json.loads(answer["out"])["trials"]
        if trials:
            count, examples = len(trials), ", ".join(trials[:3])
            raise Conflict(
                f"host {name}: {count} trials are running there ({examples}),"
                " and a restart would end them",
                f"wait until they end, or run `fleetctl hosts drain {name}` and deploy later;"
                " --force ends them, and they are retried later",
            )

    async def _check_health(self, version: str, timeout_s: float) -> None:
        async def is_still_running() -> bool:
            if self._wanted.location.mode != DAEMON:
                return True  # systemctl has waited until the agent listens
            return await self._succeeds(self._keeper_argv("steady"))

        agent = DeployedAgent(self._host, self._context.authority, self._connection)
        try:
            info = await wait_healthy(
                agent.client, self._host, version.rpartition("-")[0], timeout_s, is_still_running
            )
        finally:
            await agent.close()
        command_line = await self._context.run_in_thread(
            self._session.execute, RunProgram(("cat", f"/proc/{info.pid}/cmdline"))
        )
        if version not in command_line["out"]:
            raise Unhealthy(
                f"the agent that answers on {self._host.name} (process {info.pid})"
                f" does not run version {version}"
            )

    def _keeper_argv(self, action: str) -> tuple[str, ...]:
        root = self._wanted.location.root
        return (self._wanted.interpreter.executable(root), "-I", f"{root}/keeper.py", action, root)

    async def _succeeds(self, argv: Sequence[str]) -> bool:
        answer = await self._context.run_in_thread(
            self._session.execute, RunProgram(tuple(argv), timeout_s=150.0)
        )
        return bool(answer["code"] == 0)

    async def _roll_back(self, error: Unhealthy) -> HostResult:
        """Go back to the state before the switch. If there is no earlier version, stop the
        agent.
        """
        self._context.report_progress(self._host.name, "going back to the previous version")
        location = self._wanted.location
        log = await self._context.run_in_thread(
            self._session.execute, RunProgram(location.log_argv)
        )
        lines = [line for line in (log["out"] or "").splitlines() if line.strip()][-8:]
        before = await self._context.run_in_thread(self._session.restore)
        message = "\n    ".join(
            [error.message, "the agent's last log lines:", *(lines or ["(none)"])]
        )
        if not before:
            await self._stop()
            hint = (
                "there is no previous version, so no agent runs there now: deploy again, or run"
                f" `fleetctl undeploy {self._host.name}`"
            )
            return HostResult(
                self._host.name,
                "failed",
                message=message,
                hint=hint,
                exit_code=int(error.exit_code),
            )
        hint = await self._restart_previous(before.rpartition("/")[2])
        return HostResult(
            self._host.name,
            "rolled_back",
            message=message,
            hint=hint,
            exit_code=int(error.exit_code),
        )

    async def _stop(self) -> None:
        location = self._wanted.location
        if location.mode == DAEMON:
            await self._succeeds(self._keeper_argv("stop"))
            return
        for words in (("stop", UNIT), ("disable", "--quiet", UNIT)):
            await self._succeeds(location.systemctl(*words))

    async def _restart_previous(self, version: str) -> str:
        location = self._wanted.location
        if location.mode == DAEMON:
            restarts: list[tuple[str, ...]] = [
                self._keeper_argv("stop"),
                self._keeper_argv("start"),
            ]
        else:
            restarts = [location.systemctl("daemon-reload"), location.systemctl("restart", UNIT)]
        for argv in restarts:
            await self._succeeds(argv)
        try:
            await self._check_health(version, HEALTH_TIMEOUT_S)
        except Unhealthy as error:
            return f"version {version} is back, but it is not healthy either: {error.message}"
        return f"version {version} is back and answers; the new version is not in use"
