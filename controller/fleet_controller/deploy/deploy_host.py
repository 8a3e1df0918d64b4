"""Deploys to one host: reads its facts, plans, takes the installation's lock, reads and plans
again, and executes the plan.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.agent_health import DeployedAgent, Unhealthy, wait_healthy
from fleet_controller.deploy.deploy_context import DeployContext, HostResult, PlannedDeploy
from fleet_controller.deploy.deploy_plan import plan_deploy
from fleet_controller.deploy.host_facts import ProbeFacts, parse_facts
from fleet_controller.deploy.install_location import SYSTEM_USER, candidate_roots, choose_location
from fleet_controller.deploy.installer_session import InstallerSession, remote_source
from fleet_controller.deploy.plan_executor import PlanExecutor
from fleet_controller.deploy.remote.probe import STARTER
from fleet_controller.deploy.wanted_install import (
    AgentInterpreter,
    TrustFiles,
    WantedInstall,
    choose_python,
)
from fleet_controller.deploy.wheel_bundle import wheel_target
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_protos.errors import ConfigError, FleetError, HostUnreachable
from fleet_transport.certificate import parse_certificates

UNCHANGED_HEALTH_TIMEOUT_S = 5.0
_PLACEHOLDER = b"(made when it is deployed)"


async def deploy_host(host: FleetHost, context: DeployContext) -> HostResult:
    """Deploy to a host. If the deploy fails there, the result holds the error."""
    return await run_connected(host, context, _deploy)


async def run_connected(
    host: FleetHost,
    context: DeployContext,
    host_work: Callable[[FleetHost, DeployContext, SshConnection], Any],
) -> HostResult:
    """Run `host_work` on an open SSH connection. A FleetError becomes a failed result."""
    started = time.monotonic()
    try:
        context.report_progress(host.name, "connecting")
        with await context.run_in_thread(
            SshConnection.open, host.ssh, context.keyring
        ) as connection:
            result: HostResult = await host_work(host, context, connection)
    except FleetError as error:
        message = error.message.removeprefix(f"host {host.name}: ")
        result = HostResult(
            host.name, "failed", message=message, hint=error.hint, exit_code=int(error.exit_code)
        )
    return replace(result, seconds=round(time.monotonic() - started, 2))


async def _deploy(host: FleetHost, context: DeployContext, connection: SshConnection) -> HostResult:
    context.report_progress(host.name, "reading facts")
    planned = await context.run_in_thread(_plan_host, host, context, connection)
    if context.dry_run:
        return HostResult(
            host.name,
            "planned",
            version=planned.plan.version,
            commands=planned.plan.commands,
            notes=planned.plan.notes,
        )
    if not planned.plan.commands:
        return await _verify_unchanged(host, context, connection, planned)
    python = planned.wanted.interpreter.path or "python3"
    with await context.run_in_thread(
        InstallerSession, connection, host.name, planned.wanted.location, python
    ) as session:
        # Plan again: another deploy may have changed the host before we got the lock.
        planned = await context.run_in_thread(
            partial(_plan_host, host, context, connection, issue=True)
        )
        if not planned.plan.commands:
            return await _verify_unchanged(host, context, connection, planned)
        result = await PlanExecutor(host, context, connection, session, planned).execute()
    if result.state == "changed":
        await context.run_in_thread(_record_certificate, host, planned, context.authority)
    return result


def _plan_host(
    host: FleetHost, context: DeployContext, connection: SshConnection, *, issue: bool = False
) -> PlannedDeploy:
    facts = fetch_facts(connection, host)
    wanted = wanted_install(host, facts, context, issue=issue)
    return PlannedDeploy(facts, wanted, plan_deploy(facts, wanted))


def _record_certificate(host: FleetHost, planned: PlannedDeploy, authority: Authority) -> None:
    """Record the certificate that the agent answers with, so that its earlier certificates are no
    longer trusted.
    """
    pem = (
        planned.wanted.trust_files.certificate
        or planned.facts.installed_at(planned.wanted.location.root).certificate.encode()
    )
    authority.mark_installed(host.name, parse_certificates(pem)[0].fingerprint)


async def _verify_unchanged(
    host: FleetHost, context: DeployContext, connection: SshConnection, planned: PlannedDeploy
) -> HostResult:
    async def is_still_running() -> bool:
        return True

    agent = DeployedAgent(host, context.authority, connection)
    try:
        await wait_healthy(
            agent.client,
            host,
            planned.wanted.bundle.version,
            UNCHANGED_HEALTH_TIMEOUT_S,
            is_still_running,
        )
    except Unhealthy as error:
        log_command = " ".join(planned.wanted.location.log_argv)
        raise HostUnreachable(
            error.message, f"nothing was changed; see the agent's log on the host: {log_command}"
        ) from error
    finally:
        await agent.close()
    await context.run_in_thread(_record_certificate, host, planned, context.authority)
    return HostResult(
        host.name, "unchanged", version=planned.plan.version, notes=planned.plan.notes
    )


def fetch_facts(connection: SshConnection, host: FleetHost) -> ProbeFacts:
    """Run the probe on the host in one round trip. Raises ConfigError for a host without Python."""
    source = remote_source("probe")
    request = {
        "roots": candidate_roots(host.install),
        "users": [host.install.run_as or SYSTEM_USER, SYSTEM_USER],
        "python": "" if host.install.python in ("auto", "bundled") else host.install.python,
        "sudo": host.install.mode in ("auto", "system"),
        "source": source,
    }
    result = connection.run(["python3", "-I", "-c", STARTER], json.dumps(request).encode() + b"\n")
    if result.code != 0:
        last_lines = result.error.decode(errors="replace").strip().splitlines()[-1:]
        problem = last_lines[0] if last_lines else f"exit code {result.code}"
        raise ConfigError(
            f"host {host.name}: python3 does not work there: {problem}",
            "install Python 3.11 or newer on the host; with install.python: bundled, Python 3.6 or"
            " newer is enough",
        )
    return parse_facts(json.loads(result.out))


def wanted_install(
    host: FleetHost, facts: ProbeFacts, context: DeployContext, *, issue: bool
) -> WantedInstall:
    """Combine fleet file, wheels and certificate authority into the wanted state of a host.

    If the installed certificate must be replaced, `issue` makes a new certificate. Without `issue`,
    the plan shows a placeholder for it. Raises ConfigError.
    """
    location = choose_location(host, facts)
    interpreter = (
        context.bundled_interpreter(facts.machine)
        if host.install.python == "bundled"
        else _host_interpreter(host, facts)
    )
    try:
        target = wheel_target(interpreter.version, facts.machine, facts.libc)
    except ConfigError as error:
        raise ConfigError(f"host {host.name}: {error.message}", error.hint) from error
    bundle = context.bundle_for(target, simulated=host.simulated_gpus > 0)
    trusted = _trust_files(
        host, facts.installed_at(location.root).certificate, context.authority, issue=issue
    )
    return WantedInstall(
        host, location, bundle, interpreter, trusted, remote_source("keeper"), context.force
    )


def _host_interpreter(host: FleetHost, facts: ProbeFacts) -> AgentInterpreter:
    python = choose_python(host, facts)
    return AgentInterpreter(python.version, python.path)


def _trust_files(
    host: FleetHost, installed: str, authority: Authority, *, issue: bool
) -> TrustFiles:
    try:
        fingerprint = parse_certificates(installed.encode())[0].fingerprint if installed else ""
    except ValueError:
        fingerprint = ""
    lists = authority.authorities_pem(), authority.revoked_text().encode()
    if not authority.renewal_reason(host.name, fingerprint, time.time_ns() / 1e9):
        return TrustFiles(*lists)
    if not issue:
        return TrustFiles(*lists, _PLACEHOLDER, _PLACEHOLDER)
    issued = authority.issue_agent(host.name, [host.address])
    return TrustFiles(*lists, issued.certificate_pem, issued.key_pem)
