"""Owns bringing one host to what is wanted: reads facts, plans, carries out, asks the agent, goes back when that is not well."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy import commands as do
from fleet_controller.deploy.bundle import Bundle, Bundler, Target, target_of
from fleet_controller.deploy.commands import Command
from fleet_controller.deploy.facts import DAEMON, Facts, parse_facts
from fleet_controller.deploy.health import Line, Unhealthy, wait_healthy
from fleet_controller.deploy.interpreters import bundled_python
from fleet_controller.deploy.keyring import Keyring
from fleet_controller.deploy.places import SYSTEM_USER, UNIT, place_of, roots
from fleet_controller.deploy.plan import Interpreter, Plan, Trusted, Wanted, choose_python, plan_deploy
from fleet_controller.deploy.remote.probe import STARTER
from fleet_controller.deploy.session import DeployFailed, Session, remote_source
from fleet_controller.deploy.ssh import Connection
from fleet_controller.trust.authority import Authority
from fleet_protos.certificate import certificates
from fleet_protos.errors import ConfigError, Conflict, FleetError, HostUnreachable

HEALTHY_S = 60.0
UNCHANGED_HEALTHY_S = 5.0
Say = Callable[[str, str], None]  # host, what happens there now
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostResult:
    """What came of one host. `state`: changed, unchanged, planned, removed, rolled_back, failed; then `message` and `hint` say why."""

    host: str
    state: str
    seconds: float = 0.0
    version: str = ""
    message: str = ""
    hint: str = ""
    exit_code: int = 0
    commands: tuple[Command, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Tools:
    """What all hosts of one command share. Blocking work goes to `threads`."""

    authority: Authority
    bundler: Bundler
    say: Say
    threads: ThreadPoolExecutor
    force: bool = False
    dry_run: bool = False
    keyring: Keyring = field(default_factory=Keyring)
    bundles: dict[Target, Bundle] = field(default_factory=dict)
    _building: threading.Lock = field(default_factory=threading.Lock)

    async def blocking(self, work: Callable[..., T], *given: Any) -> T:
        """In a thread of this command."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(work, *given))

    def bundle(self, target: Target) -> Bundle:
        """Built once for all hosts of a target."""
        with self._building:
            if target not in self.bundles:
                self.bundles[target] = self.bundler.bundle(target)
            return self.bundles[target]

    def interpreter(self, machine: str) -> Interpreter:
        """One that is brought along, for all hosts of an architecture."""
        with self._building:
            version, file = bundled_python(self.bundler.cache, machine)
            return Interpreter(version, brought=file)


async def deploy_host(host: FleetHost, tools: Tools) -> HostResult:
    """All of it; a host's trouble is in the result, whatever it is."""
    return await told(host, tools, _deploy)


async def told(host: FleetHost, tools: Tools, work: Callable[[FleetHost, Tools, Connection], Any]) -> HostResult:
    """The result of `work` on an open connection. Its errors become the result."""
    began = time.monotonic()
    try:
        tools.say(host.name, "connecting")
        with await tools.blocking(Connection.open, host.ssh, tools.keyring) as connection:
            result: HostResult = await work(host, tools, connection)
    except FleetError as error:
        message = error.message.removeprefix(f"host {host.name}: ")
        result = HostResult(host.name, "failed", message=message, hint=error.hint, exit_code=int(error.exit_code))
    return _timed(result, time.monotonic() - began)


def _timed(result: HostResult, seconds: float) -> HostResult:
    return replace(result, seconds=round(seconds, 2))


async def _deploy(host: FleetHost, tools: Tools, connection: Connection) -> HostResult:
    tools.say(host.name, "reading facts")
    facts = await tools.blocking(read_facts, connection, host)
    wanted = await tools.blocking(wanted_of, host, facts, tools)
    plan = plan_deploy(facts, wanted)
    if tools.dry_run:
        return HostResult(host.name, "planned", version=plan.version, commands=plan.commands, notes=plan.notes)
    if plan.commands:
        result = await _Carrying(host, tools, connection, wanted, plan).through()
    else:
        result = await _unchanged(host, tools, connection, wanted, plan)
    if result.state in ("changed", "unchanged"):
        await tools.blocking(_note_certificate, host, facts, wanted, tools.authority)
    return result


def _note_certificate(host: FleetHost, facts: Facts, wanted: Wanted, authority: Authority) -> None:
    """The agent answers with what lies there now: earlier certificates of the host are trusted no more."""
    pem = wanted.trusted.certificate or facts.at(wanted.place.root).certificate.encode()
    authority.installed(host.name, certificates(pem)[0].fingerprint)


async def _unchanged(host: FleetHost, tools: Tools, connection: Connection, wanted: Wanted, plan: Plan) -> HostResult:
    async def steady() -> bool:
        return True

    line = Line(host, tools.authority, connection)
    try:
        await wait_healthy(line.client, host, wanted.bundle.version, UNCHANGED_HEALTHY_S, steady)
    except Unhealthy as error:
        hint = f"nothing was changed; look at its log there: {' '.join(wanted.place.log_argv)}"
        raise HostUnreachable(error.message, hint) from error
    finally:
        await line.close()
    return HostResult(host.name, "unchanged", version=plan.version, notes=plan.notes)


def read_facts(connection: Connection, host: FleetHost) -> Facts:
    """One round trip. Raises ConfigError for a host without any Python."""
    source = remote_source("probe")
    question = {
        "roots": roots(host.install), "users": [host.install.run_as or SYSTEM_USER, SYSTEM_USER],
        "python": "" if host.install.python in ("auto", "bundled") else host.install.python,
        "sudo": host.install.mode in ("auto", "system"), "source": source,
    }  # fmt: skip
    ran = connection.run(["python3", "-I", "-c", STARTER], json.dumps(question).encode() + b"\n")
    if ran.code != 0:
        said = ran.error.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {ran.code}"]
        hint = "install python3 there: 3.11 or newer for the agent itself, or any with install.python: bundled"
        raise ConfigError(f"host {host.name}: python3 cannot be used there: {said[0]}", hint)
    return parse_facts(json.loads(ran.out))


def wanted_of(host: FleetHost, facts: Facts, tools: Tools) -> Wanted:
    """What the fleet file, the bundle and the authority want of this host. Issues a certificate when the one there is no good."""
    place = place_of(host, facts)
    interpreter = tools.interpreter(facts.machine) if host.install.python == "bundled" else _found(host, facts)
    try:
        target = target_of(interpreter.version, facts.machine, facts.libc)
    except ConfigError as error:
        raise ConfigError(f"host {host.name}: {error.message}", error.hint) from error
    bundle = tools.bundle(target)
    trusted = _trusted(host, facts.at(place.root).certificate, tools)
    return Wanted(host, place, bundle, interpreter, trusted, remote_source("keeper"), tools.force)


def _found(host: FleetHost, facts: Facts) -> Interpreter:
    python = choose_python(host, facts)
    return Interpreter(python.version, python.path)


def _trusted(host: FleetHost, installed: str, tools: Tools) -> Trusted:
    authority = tools.authority
    try:
        fingerprint = certificates(installed.encode())[0].fingerprint if installed else ""
    except ValueError:
        fingerprint = ""
    lists = authority.authorities_pem(), authority.revoked_text().encode()
    if not authority.needs_new(host.name, fingerprint, time.time_ns() / 1e9):
        return Trusted(*lists)
    if tools.dry_run:
        return Trusted(*lists, b"(made when it is deployed)", b"(made when it is deployed)")
    issued = authority.issue_agent(host.name, [host.address])
    return Trusted(*lists, issued.certificate_pem, issued.key_pem)


def last_words(answer: Any) -> str:
    """What a program there said last, for a message."""
    return " / ".join((answer["error"] or answer["out"]).strip().splitlines()[-3:])


class _Carrying:
    """The carrying out of one host's plan."""

    def __init__(self, host: FleetHost, tools: Tools, connection: Connection, wanted: Wanted, plan: Plan) -> None:
        self._host = host
        self._tools = tools
        self._connection = connection
        self._wanted = wanted
        self._plan = plan

    async def through(self) -> HostResult:
        """All commands in order; back to the version before when the agent is not well."""
        place = self._wanted.place
        python = self._wanted.interpreter.path or "python3"
        with await self._tools.blocking(Session, self._connection, self._host.name, place, python) as session:
            to_send = sum(command.size for command in self._plan.commands if isinstance(command, do.SendWheel))
            sent = 0
            for command in self._plan.commands:
                if isinstance(command, do.SendWheel):
                    self._tools.say(self._host.name, f"copying {sent / 1e6:.0f} of {to_send / 1e6:.0f} MB")
                    sent += command.size
                try:
                    await self._do(session, command)
                except Unhealthy as error:
                    return await self._go_back(session, error)
        return HostResult(self._host.name, "changed", version=self._plan.version, commands=self._plan.commands, notes=self._plan.notes)

    async def _do(self, session: Session, command: Command) -> None:
        if isinstance(command, do.CheckHealth):
            self._tools.say(self._host.name, "waiting for its agent")
            return await self._check(session, command.version, HEALTHY_S)
        answer = await self._tools.blocking(session.carry_out, command)
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

    async def _check(self, session: Session, version: str, timeout_s: float) -> None:
        async def steady() -> bool:
            if self._wanted.place.mode != DAEMON:
                return True  # systemctl has waited until it listened
            return await self._succeeds(session, self._keeper("steady"))

        line = Line(self._host, self._tools.authority, self._connection)
        try:
            info = await wait_healthy(line.client, self._host, version.rpartition("-")[0], timeout_s, steady)
        finally:
            await line.close()
        words = await self._tools.blocking(session.carry_out, do.RunProgram(("cat", f"/proc/{info.pid}/cmdline")))
        if version not in words["out"]:
            raise Unhealthy(f"the agent that answers on {self._host.name} (process {info.pid}) is not the one of version {version}")

    def _keeper(self, action: str) -> tuple[str, ...]:
        root = self._wanted.place.root
        return (self._wanted.interpreter.executable(root), "-I", f"{root}/keeper.py", action, root)

    async def _succeeds(self, session: Session, argv: Sequence[str]) -> bool:
        answer = await self._tools.blocking(session.carry_out, do.RunProgram(tuple(argv), timeout_s=150.0))
        return bool(answer["code"] == 0)

    async def _go_back(self, session: Session, error: Unhealthy) -> HostResult:
        """To what was before the switch, or to nothing that runs when there was nothing."""
        self._tools.say(self._host.name, "going back to the version before")
        place = self._wanted.place
        log = await self._tools.blocking(session.carry_out, do.RunProgram(place.log_argv))
        lines = [line for line in (log["out"] or "").splitlines() if line.strip()][-8:]
        before = await self._tools.blocking(session.restore)
        told = "\n    ".join([error.message, "the agent's last log lines:", *(lines or ["(none)"])])
        if not before:
            await self._stop(session)
            hint = f"there was none before, so nothing runs there now: deploy again, or fleetctl undeploy {self._host.name}"
            return HostResult(self._host.name, "failed", message=told, hint=hint, exit_code=int(error.exit_code))
        hint = await self._start_again(session, before.rpartition("/")[2])
        return HostResult(self._host.name, "rolled_back", message=told, hint=hint, exit_code=int(error.exit_code))

    async def _stop(self, session: Session) -> None:
        place = self._wanted.place
        if place.mode == DAEMON:
            await self._succeeds(session, self._keeper("stop"))
            return
        for words in (("stop", UNIT), ("disable", "--quiet", UNIT)):
            await self._succeeds(session, place.systemctl(*words))

    async def _start_again(self, session: Session, version: str) -> str:
        place = self._wanted.place
        if place.mode == DAEMON:
            restarts: list[tuple[str, ...]] = [self._keeper("stop"), self._keeper("start")]
        else:
            restarts = [place.systemctl("daemon-reload"), place.systemctl("restart", UNIT)]
        for argv in restarts:
            await self._succeeds(session, argv)
        try:
            await self._check(session, version, HEALTHY_S)
        except Unhealthy as error:
            return f"version {version} is back, but it is not well either: {error.message}"
        return f"version {version} is back and answers; the new one was not kept"
