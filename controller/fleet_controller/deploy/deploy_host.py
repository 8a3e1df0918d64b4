"""Owns bringing one host to what is wanted: facts and plan, then both once more with the installation locked, and their carrying out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.agent_health import Line, Unhealthy, wait_healthy
from fleet_controller.deploy.deploy_context import HostResult, Seen, Tools
from fleet_controller.deploy.deploy_plan import (
    Interpreter,
    Trusted,
    Wanted,
    choose_python,
    plan_deploy,
)
from fleet_controller.deploy.host_facts import Facts, parse_facts
from fleet_controller.deploy.install_location import SYSTEM_USER, place_of, roots
from fleet_controller.deploy.installer_session import Session, remote_source
from fleet_controller.deploy.plan_executor import Carrying
from fleet_controller.deploy.remote.probe import STARTER
from fleet_controller.deploy.wheel_bundle import target_of
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.ssh_connection import Connection
from fleet_protos.errors import ConfigError, FleetError, HostUnreachable
from fleet_transport.certificate import certificates

UNCHANGED_HEALTHY_S = 5.0


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
    seen = await tools.blocking(_look, host, tools, connection)
    if tools.dry_run:
        return HostResult(host.name, "planned", version=seen.plan.version, commands=seen.plan.commands, notes=seen.plan.notes)
    if not seen.plan.commands:
        return await _unchanged(host, tools, connection, seen)
    python = seen.wanted.interpreter.path or "python3"
    with await tools.blocking(Session, connection, host.name, seen.wanted.place, python) as session:
        seen = await tools.blocking(partial(_look, host, tools, connection, issue=True))  # another deploy may have been there until now
        if not seen.plan.commands:
            return await _unchanged(host, tools, connection, seen)
        result = await Carrying(host, tools, connection, session, seen).through()
    if result.state == "changed":
        await tools.blocking(_note_certificate, host, seen, tools.authority)
    return result


def _look(host: FleetHost, tools: Tools, connection: Connection, *, issue: bool = False) -> Seen:
    facts = read_facts(connection, host)
    wanted = wanted_of(host, facts, tools, issue=issue)
    return Seen(facts, wanted, plan_deploy(facts, wanted))


def _note_certificate(host: FleetHost, seen: Seen, authority: Authority) -> None:
    """The agent answers with what lies there now: earlier certificates of the host are trusted no more."""
    pem = seen.wanted.trusted.certificate or seen.facts.at(seen.wanted.place.root).certificate.encode()
    authority.installed(host.name, certificates(pem)[0].fingerprint)


async def _unchanged(host: FleetHost, tools: Tools, connection: Connection, seen: Seen) -> HostResult:
    async def steady() -> bool:
        return True

    line = Line(host, tools.authority, connection)
    try:
        await wait_healthy(line.client, host, seen.wanted.bundle.version, UNCHANGED_HEALTHY_S, steady)
    except Unhealthy as error:
        hint = f"nothing was changed; look at its log there: {' '.join(seen.wanted.place.log_argv)}"
        raise HostUnreachable(error.message, hint) from error
    finally:
        await line.close()
    await tools.blocking(_note_certificate, host, seen, tools.authority)
    return HostResult(host.name, "unchanged", version=seen.plan.version, notes=seen.plan.notes)


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


def wanted_of(host: FleetHost, facts: Facts, tools: Tools, *, issue: bool) -> Wanted:
    """What the fleet file, the bundle and the authority want of this host. `issue`: a certificate where the one there is no good."""
    place = place_of(host, facts)
    interpreter = tools.interpreter(facts.machine) if host.install.python == "bundled" else _found(host, facts)
    try:
        target = target_of(interpreter.version, facts.machine, facts.libc)
    except ConfigError as error:
        raise ConfigError(f"host {host.name}: {error.message}", error.hint) from error
    bundle = tools.bundle(target)
    trusted = _trusted(host, facts.at(place.root).certificate, tools.authority, issue=issue)
    return Wanted(host, place, bundle, interpreter, trusted, remote_source("keeper"), tools.force)


def _found(host: FleetHost, facts: Facts) -> Interpreter:
    python = choose_python(host, facts)
    return Interpreter(python.version, python.path)


def _trusted(host: FleetHost, installed: str, authority: Authority, *, issue: bool) -> Trusted:
    try:
        fingerprint = certificates(installed.encode())[0].fingerprint if installed else ""
    except ValueError:
        fingerprint = ""
    lists = authority.authorities_pem(), authority.revoked_text().encode()
    if not authority.needs_new(host.name, fingerprint, time.time_ns() / 1e9):
        return Trusted(*lists)
    if not issue:
        return Trusted(*lists, b"(made when it is deployed)", b"(made when it is deployed)")
    issued = authority.issue_agent(host.name, [host.address])
    return Trusted(*lists, issued.certificate_pem, issued.key_pem)
