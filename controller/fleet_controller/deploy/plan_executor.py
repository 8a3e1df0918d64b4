"""Owns the carrying out of a plan on one host, command by command, and the way back when its agent is not well. Plans nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy import host_commands as do
from fleet_controller.deploy.agent_health import Line, Unhealthy, wait_healthy
from fleet_controller.deploy.deploy_context import HostResult, Seen, Tools
from fleet_controller.deploy.host_commands import Command
from fleet_controller.deploy.host_facts import DAEMON
from fleet_controller.deploy.install_location import UNIT
from fleet_controller.deploy.installer_session import DeployFailed, Session
from fleet_controller.ssh.ssh_connection import Connection
from fleet_protos.errors import Conflict

HEALTHY_S = 60.0


def last_words(answer: Any) -> str:
    """What a program there said last, for a message."""
    return " / ".join((answer["error"] or answer["out"]).strip().splitlines()[-3:])


class Carrying:
    """The carrying out of one host's plan in an open session."""

    def __init__(self, host: FleetHost, tools: Tools, connection: Connection, session: Session, seen: Seen) -> None:
        self._host = host
        self._tools = tools
        self._connection = connection
        self._session = session
        self._wanted = seen.wanted
        self._plan = seen.plan

    async def through(self) -> HostResult:
        """All commands in order; back to the version before when the agent is not well. Raises Conflict, DeployFailed, HostUnreachable."""
        to_send = sum(command.size for command in self._plan.commands if isinstance(command, do.SendWheel))
        sent = 0
        for command in self._plan.commands:
            if isinstance(command, do.SendWheel):
                self._tools.say(self._host.name, f"copying {sent / 1e6:.0f} of {to_send / 1e6:.0f} MB")
                sent += command.size
            try:
                await self._do(command)
            except Unhealthy as error:
                return await self._go_back(error)
        return HostResult(self._host.name, "changed", version=self._plan.version, commands=self._plan.commands, notes=self._plan.notes)

    async def _do(self, command: Command) -> None:
        if isinstance(command, do.CheckHealth):
            self._tools.say(self._host.name, "waiting for its agent")
            return await self._check(command.version, HEALTHY_S)
        answer = await self._tools.blocking(self._session.carry_out, command)
        if isinstance(command, do.RequireIdle):
            self._require_idle(answer)
        elif isinstance(command, do.RunProgram) and answer["code"] != 0:
            said = last_words(answer)
            if not command.restarts:
                raise DeployFailed(f"host {self._host.name}: {command}: exit code {answer['code']}: {said}", command.hint)
            raise Unhealthy(f"the agent of {self._host.name} could not be started: {said}")

    def _require_idle(self, answer: Any) -> None:
        name = self._host.name
        if answer["code"] != 0:
            told = f"host {name}: it is not known whether trials run there: {answer['error'].strip()[-300:]}"
            raise Conflict(told, "look at the agent's journal; --force restarts it all the same")
        trials = json.loads(answer["out"])["trials"]
        if trials:
            hint = f"wait for them, or fleetctl hosts drain {name} and deploy later; --force ends them, and they are tried again"
            raise Conflict(f"host {name}: {len(trials)} trials run there ({', '.join(trials[:3])}), and a restart would end them", hint)

    async def _check(self, version: str, timeout_s: float) -> None:
        async def steady() -> bool:
            if self._wanted.place.mode != DAEMON:
                return True  # systemctl has waited until it listened
            return await self._succeeds(self._keeper("steady"))

        line = Line(self._host, self._tools.authority, self._connection)
        try:
            info = await wait_healthy(line.client, self._host, version.rpartition("-")[0], timeout_s, steady)
        finally:
            await line.close()
        words = await self._tools.blocking(self._session.carry_out, do.RunProgram(("cat", f"/proc/{info.pid}/cmdline")))
        if version not in words["out"]:
            raise Unhealthy(f"the agent that answers on {self._host.name} (process {info.pid}) is not the one of version {version}")

    def _keeper(self, action: str) -> tuple[str, ...]:
        root = self._wanted.place.root
        return (self._wanted.interpreter.executable(root), "-I", f"{root}/keeper.py", action, root)

    async def _succeeds(self, argv: Sequence[str]) -> bool:
        answer = await self._tools.blocking(self._session.carry_out, do.RunProgram(tuple(argv), timeout_s=150.0))
        return bool(answer["code"] == 0)

    async def _go_back(self, error: Unhealthy) -> HostResult:
        """To what was before the switch, or to nothing that runs when there was nothing."""
        self._tools.say(self._host.name, "going back to the version before")
        place = self._wanted.place
        log = await self._tools.blocking(self._session.carry_out, do.RunProgram(place.log_argv))
        lines = [line for line in (log["out"] or "").splitlines() if line.strip()][-8:]
        before = await self._tools.blocking(self._session.restore)
        told = "\n    ".join([error.message, "the agent's last log lines:", *(lines or ["(none)"])])
        if not before:
            await self._stop()
            hint = f"there was none before, so nothing runs there now: deploy again, or fleetctl undeploy {self._host.name}"
            return HostResult(self._host.name, "failed", message=told, hint=hint, exit_code=int(error.exit_code))
        hint = await self._start_again(before.rpartition("/")[2])
        return HostResult(self._host.name, "rolled_back", message=told, hint=hint, exit_code=int(error.exit_code))

    async def _stop(self) -> None:
        place = self._wanted.place
        if place.mode == DAEMON:
            await self._succeeds(self._keeper("stop"))
            return
        for words in (("stop", UNIT), ("disable", "--quiet", UNIT)):
            await self._succeeds(place.systemctl(*words))

    async def _start_again(self, version: str) -> str:
        place = self._wanted.place
        if place.mode == DAEMON:
            restarts: list[tuple[str, ...]] = [self._keeper("stop"), self._keeper("start")]
        else:
            restarts = [place.systemctl("daemon-reload"), place.systemctl("restart", UNIT)]
        for argv in restarts:
            await self._succeeds(argv)
        try:
            await self._check(version, HEALTHY_S)
        except Unhealthy as error:
            return f"version {version} is back, but it is not well either: {error.message}"
        return f"version {version} is back and answers; the new one was not kept"
