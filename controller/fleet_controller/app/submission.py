"""Plans a submitted job file, checks it against the hosts, and stores the job."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet_controller.core.fairness import initial_host_time
from fleet_controller.core.gang import LOOPBACK
from fleet_controller.core.host_view import GPUS_UNKNOWN
from fleet_controller.core.job import HostChoice, Job
from fleet_controller.hosts.connections import HostConnections
from fleet_controller.hosts.wait_connected import planning_candidates, wait_until_connected
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.job_file.resolved_job import resolved_json
from fleet_controller.jobs.state_writer import StateWriter
from fleet_controller.planning.admission_preview import predicted_refusal
from fleet_controller.planning.estimate import estimate_seconds
from fleet_controller.planning.host_selection import choose_hosts, host_choice_findings
from fleet_controller.planning.job_plan import Plan, make_plan, trial_specs
from fleet_controller.planning.load_host_assignment import (
    load_host_findings,
    load_hosts_of,
    load_plan,
)
from fleet_controller.store.rows import JobRow
from fleet_controller.yaml.findings import ERROR, JobRejected, has_errors
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import EngineKind, TrialSpec

_SIMULATOR_HINT = (
    "set simulated_gpus for a host in the fleet file and run `fleetctl deploy`, or install"
    " benchfleet[simulator] where the agent runs"
)


class JobSubmission:
    """Plans, checks and stores the jobs that users submit.

    `first_contact_s` is how long a submit waits for hosts that have not answered yet.
    """

    def __init__(
        self, writer: StateWriter, connections: HostConnections, first_contact_s: float
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._by_host = connections.by_host
        self._first_contact_s = first_contact_s

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool, request_key: str
    ) -> str:
        """Store a job and return its id. If a job was stored with this `request_key` before, return
        that job's id instead.

        Raises JobRejected for a job file with errors. Raises HostUnreachable if no agent is
        connected. Raises ConfigError if no host can run the job.
        """
        if existing_id := await self._writer.job_of_request(request_key):
            return existing_id
        loaded = await asyncio.to_thread(load_job, yaml, file_name)  # a large file takes seconds
        plan = await self._plan(loaded.job, only_connected)
        job_id = f"{loaded.job.name}-{secrets.token_hex(3)}"
        specs = [
            spec
            for planned in plan.trials
            for spec in trial_specs(loaded.job, plan, planned, job_id)
        ]
        self._check_runnable(specs, plan.hosts)
        self._check_gang_addresses(_gangs(loaded.job, plan))
        row = replace(
            _job_row(job_id, loaded, estimate_seconds(plan, loaded.job)),
            placement=self._placement(loaded.job.hosts, specs, plan.hosts).to_json(),
            joined_s=initial_host_time(self._writer.job_index.host_times(loaded.job.priority)),
        )
        return await self._writer.add_job(row, specs, request_key)

    async def _plan(self, job: Job, only_connected: bool) -> Plan:
        """Plan the job on the hosts that match. The plan includes hosts of the fleet file that do
        not answer now, unless `only_connected` is set.
        """
        await wait_until_connected(
            self._connections.all, job.hosts.names, self._writer.job_index, self._first_contact_s
        )
        known = planning_candidates(self._connections.all)
        findings = (
            list(host_choice_findings(job, known, only_connected))
            if any(host.in_file for host in known)
            else []
        )
        if has_errors(findings):
            raise JobRejected(findings)
        hosts = choose_hosts(job, known, only_connected)
        findings = list(load_host_findings(job, known, hosts))
        if has_errors(findings):
            raise JobRejected(findings)
        plan = make_plan(job, hosts, load_plan(job, load_hosts_of(job, known, hosts)))
        if plan.is_refused:
            raise JobRejected([finding for finding in plan.findings if finding.severity == ERROR])
        return plan

    def _check_runnable(self, specs: Sequence[TrialSpec], hosts: Sequence[str]) -> None:
        """Raise ConfigError if no host has the GPUs that a trial needs, or if a host does not allow
        the trial.
        """
        for spec in specs:
            gpus = {
                host: self._by_host[host].usable_gpus(spec.engine.kind)
                for host in ([spec.host] if spec.host else hosts)
            }
            if spec.engine.kind is EngineKind.SIMULATED and not any(gpus.values()):
                names = ", ".join(gpus)
                raise ConfigError(
                    f"variant {spec.variant} needs a simulated server, but host {names}"
                    " runs no simulated servers",
                    _SIMULATOR_HINT,
                )
            if spec.engine.gpus > max(gpus.values()):
                available = ", ".join(f"host {host} has {count}" for host, count in gpus.items())
                raise ConfigError(
                    f"variant {spec.variant} needs {spec.engine.gpus} GPUs, but {available}",
                    "lower engine.gpus and the parallel sizes, or choose other hosts",
                )
            self._check_allowed(spec, [*gpus])

    def _check_allowed(self, spec: TrialSpec, hosts: Sequence[str]) -> None:
        """Raise ConfigError if the policy that a host's agent advertises forbids the trial. The
        agent would refuse the trial at its start.
        """
        for host in hosts:
            what, entry = predicted_refusal(spec.engine, self._by_host[host].advertised_policy)
            if what:
                raise ConfigError(
                    f"variant {spec.variant}: host {host} does not allow {what}",
                    f"use what the host allows, or ask the owner of the fleet to write "
                    f"`allow: {{{entry}}}` for host {host} in the fleet file "
                    "and to run `fleetctl deploy`",
                )

    def _placement(
        self, choice: HostChoice, specs: Sequence[TrialSpec], hosts: Sequence[str]
    ) -> HostChoice:
        """Return the host choice with the fraction of a host's GPUs that one trial takes. The
        fraction is set only if the job's trials share hosts.
        """
        largest = max(specs, key=lambda spec: spec.engine.gpus)
        reported = (self._by_host[host].usable_gpus(largest.engine.kind) for host in hosts)
        most = max((gpus for gpus in reported if gpus != GPUS_UNKNOWN), default=0)
        return (
            replace(choice, part=min(1.0, largest.engine.gpus / most))
            if largest.shared and most
            else choice
        )

    def _check_gang_addresses(self, gangs: Iterable[Sequence[str]]) -> None:
        """Raise ConfigError if a gang has remote members and no address is known at which they
        reach the lead.
        """
        for lead, *members in gangs:
            remote = [host for host in members if self._by_host[host].meeting_host != LOOPBACK]
            if remote and self._by_host[lead].meeting_host == LOOPBACK:
                names, address = ", ".join(remote), self._by_host[lead].agent.address
                raise ConfigError(
                    f"no address is known at which host {names} reaches host {lead}: "
                    f"the agent of host {lead} is at {address}",
                    f"start the agent of host {lead}, the first host of the server, with "
                    "--label address=HOST, where HOST is its address for the other hosts",
                )


def _gangs(job: Job, plan: Plan) -> set[tuple[str, ...]]:
    """Return the hosts of each server, with the lead first.

    If every block has its hosts in the plan, these hosts are returned. If a block may go to any
    host, each host is returned once as the lead, with all other hosts as members.
    """
    if job.hosts.every_host:
        return {(planned.host, *planned.members) for planned in plan.trials}
    nodes = max(job.engine.gang.nodes, 1)
    return {
        (lead, *(host for host in plan.hosts if host != lead)) if nodes > 1 else (lead,)
        for lead in plan.hosts
    }


def _job_row(job_id: str, loaded: LoadedJob, planned_s: float) -> JobRow:
    engine = loaded.job.engine
    kind = engine.kind.name.lower()
    return JobRow(
        job_id=job_id,
        name=loaded.job.name,
        yaml=loaded.text,
        file_name=loaded.file_name,
        submitted_unix_ns=time.time_ns(),
        engine=kind,
        time_scale=engine.simulation.time_scale if kind == "simulated" else 1.0,
        planned_s=planned_s,
        priority=loaded.job.priority,
        resolved=resolved_json(loaded.job),
    )
