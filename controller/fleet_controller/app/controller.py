"""Owns the controller's work: follows its agents, stores what they tell, starts what is next, fetches files. The core decides."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fleet_controller.core.controller_api import (
    HostCheck,
    HostStatus,
    JobChange,
    JobDetail,
    JobResults,
    JobSummary,
    TrialDetail,
)
from fleet_controller.core.fairness import joins_at
from fleet_controller.core.gang import LOOPBACK
from fleet_controller.core.host_view import NOT_KNOWN
from fleet_controller.core.inventory import Inventory
from fleet_controller.core.job import HostChoice, Job
from fleet_controller.core.scheduler import Start, next_starts
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.hosts.connections import Lines
from fleet_controller.hosts.host_checks import check_lines
from fleet_controller.hosts.host_connection import HostLine
from fleet_controller.hosts.host_health import Care
from fleet_controller.hosts.host_timeouts import Patience
from fleet_controller.hosts.targets import Following, peers
from fleet_controller.hosts.wait_connected import candidates, first_contact
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.jobs.job_index import Seen, closed, detail, look, wait_for
from fleet_controller.jobs.queries import StoredJobs
from fleet_controller.jobs.state_writer import Desk
from fleet_controller.planning.admission_preview import refusal
from fleet_controller.planning.estimate import estimate
from fleet_controller.planning.host_selection import choice_findings, choose
from fleet_controller.planning.job_plan import Plan, make_plan, trial_specs
from fleet_controller.planning.load_host_assignment import lenders, lending_findings, load_plan
from fleet_controller.store.store import JobRow, Store
from fleet_controller.yaml.findings import ERROR, JobRejected, has_errors
from fleet_protos.errors import ConfigError, ErrorKind, FleetError, NotFound
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import TrialSpec

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0  # for pauses between attempts, which no event ends
FIRST_CONTACT_S = 10.0  # how long a submit waits for an agent that was just started
_LAST_WORDS_S = 2.0
_LAST_FILES_S = 20.0  # how long the end waits for files that are still being fetched


class Fleet:
    """A `Controller` with agents. `load` it once; `run` must be running for anything to move."""

    def __init__(
        self, store: Store, folder: Path, follow: Following, series: RunSeries, first_contact_s: float = FIRST_CONTACT_S
    ) -> None:
        self._desk = Desk(store, series)
        self._stored = StoredJobs(store, folder / "artifacts")
        self._following = Lines(follow, self._desk, folder / "artifacts")
        self._names, self._lines = self._following.names, self._following.all
        self._first_contact_s = first_contact_s
        self._care = Care(self._desk, lambda: self._lines, follow.probe_first_s)
        self._patience = Patience(self._desk, lambda: self._lines, follow.give_up_after_s)
        self._stuck = ""  # why nothing is begun now

    # Work

    async def follow(self, inventory: Inventory) -> None:
        """The fleet file has changed: hosts come, go and change while all else goes on."""
        await self._following.adopt(peers((), inventory))

    async def load(self) -> None:
        """Read the jobs that are not over; before `run`, and before anybody asks."""
        await self._desk.load()
        await self._care.load()

    async def expect_agents(self) -> None:
        """The agents were just started: returns when all are connected, or when the time for a first contact is over.

        Those of a fleet file were not: it is enough to know why one does not answer.
        """
        deadline_s = time.monotonic() + self._first_contact_s
        for line in self._lines:
            line.try_now()
        while (left_s := deadline_s - time.monotonic()) > 0:
            if all(line.connected or (line.known and line.was_tried) for line in self._lines):
                return
            await wait_for(self._desk.board.next_change(), left_s)

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the agents and start trials until `stopping`; then fetch what is still owed and hang up."""
        try:
            async with asyncio.TaskGroup() as tasks:
                working = [tasks.create_task(work) for work in (self._following.work(), self._keep_starting(), self._care.look_again())]
                await stopping.wait()
                await self._last_files()
                await self._last_words()
                for task in working:
                    task.cancel()
        finally:
            await self._following.close()
            self._desk.close()

    async def _keep_starting(self) -> None:
        while True:
            changed = self._desk.board.next_change()
            try:
                await self._care.weigh()
                await self._let_go()
                await self._patience.end()
                for end in self._desk.board.hopeless():
                    over = closed(Attempt(1), end.kind, end.failure_class, end.message, time.time_ns())
                    await self._desk.save(end.trial_id, over)
                waiting = (job.waiting for job in self._desk.board.open_jobs)
                hosts = self._care.hosts()
                for start in next_starts(waiting, hosts, time.time_ns()):
                    await self._begin(start)
                for host in self._desk.board.hosts_to_end():
                    self._names[host].give_orders()
                self._care.tell(hosts)
                if not self._desk.trouble:
                    self._stuck = ""
                else:
                    self._tell_stuck(self._desk.trouble)
            except FleetError as error:  # the store cannot take it: nothing is begun that is not noted
                self._tell_stuck(error.message)
            await wait_for(changed, _LOOK_AGAIN_S)

    def _tell_stuck(self, why: str) -> None:
        if why != self._stuck:
            log.warning("nothing is begun: %s", why)
        self._stuck = why
        for job in self._desk.board.open_jobs:
            job.trouble = f"nothing is begun: {why}"

    async def _let_go(self) -> None:
        """Hosts that were taken out of the fleet file, once nothing is active there; what waits for them never begins."""
        for host in await self._following.drop():
            for job in self._desk.board.open_jobs:
                for trial in [trial for trial in job.trials.values() if host in trial.hosts and trial.may_start and not trial.is_active]:
                    message = f"host {host} was taken out of the fleet file"
                    end = closed(Attempt(len(trial.attempts) + 1), ErrorKind.CONFIG, "host_removed", message, time.time_ns())
                    await self._desk.save(trial.spec.trial_id, end)

    async def _begin(self, start: Start) -> None:
        """Note the attempt first, then hand it over: an agent that hears of it twice takes it once."""
        nodes = ((start.trial_id, start.host), *start.members)
        await self._desk.begin([trial_id for trial_id, _ in nodes], Attempt(start.attempt), self._desk.board.going_to(start))
        for _, host in nodes:
            self._names[host].give_orders()

    async def _last_files(self) -> None:
        try:
            async with asyncio.timeout(_LAST_FILES_S):
                for line in self._lines:
                    await line.files.all_fetched()
        except TimeoutError:
            log.warning("some files of trials were not fetched; the next start of a controller goes on with them")

    async def _last_words(self) -> None:
        """Tell each agent what is stored here: one that still owes us something obeys no other controller."""
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.gather(*(line.settle() for line in self._lines))
        except TimeoutError:
            log.info("some hosts were not told what is stored here; the next connection does so")

    # What fleetctl asks

    async def submit(self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = "") -> str:
        """Take a job; its id, that of the job made before when the request is repeated.

        Raises JobRejected, HostUnreachable when no agent is connected, ConfigError when none fits.
        """
        if made := await self._desk.job_of_request(request_key):
            return made
        loaded = await asyncio.to_thread(load_job, yaml, file_name)  # a large file takes seconds
        plan = await self._plan(loaded.job, only_connected)
        job_id = f"{loaded.job.name}-{secrets.token_hex(3)}"
        specs = [spec for planned in plan.trials for spec in trial_specs(loaded.job, plan, planned, job_id)]
        self._refuse_what_cannot_run(specs, plan.hosts)
        self._refuse_what_cannot_meet(_gangs(loaded.job, plan))
        row = replace(
            _row(job_id, loaded, estimate(plan, loaded.job)),
            placement=self._placement(loaded.job.hosts, specs, plan.hosts).to_json(),
            joined_s=joins_at(self._desk.board.standing(loaded.job.priority)),
        )
        return await self._desk.add_job(row, [Trial(spec) for spec in specs], request_key)

    async def _plan(self, job: Job, only_connected: bool) -> Plan:
        """Its trials on the hosts that match; those of the fleet file too that do not answer now, unless `only_connected`."""
        await first_contact(self._lines, job.hosts.names, self._desk.board, self._first_contact_s)
        known = candidates(self._lines)
        findings = list(choice_findings(job, known, only_connected)) if any(host.in_file for host in known) else []
        if has_errors(findings):
            raise JobRejected(findings)
        hosts = choose(job, known, only_connected)
        findings = list(lending_findings(job, known, hosts))
        if has_errors(findings):
            raise JobRejected(findings)
        plan = make_plan(job, hosts, load_plan(job, lenders(job, known, hosts)))
        if plan.is_refused:
            raise JobRejected([finding for finding in plan.findings if finding.severity == ERROR])
        return plan

    async def jobs(self) -> tuple[JobSummary, ...]:
        """All jobs, the newest first."""
        on_board = self._desk.board.jobs
        jobs = await self._stored.jobs()
        return tuple(replace(job, trouble=on_board[job.job_id].trouble) if job.job_id in on_board else job for job in jobs)

    async def job(self, job_id: str) -> JobDetail:
        """One job by its id or a unique start of it."""
        row = await self._desk.find_job(job_id)
        on_board = self._desk.board.jobs.get(row.job_id)
        if on_board is None:
            return await self._stored.job(row.job_id)
        return detail(on_board.row, on_board.trials.values(), on_board.summary.trouble)

    async def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """What changes, until the job is over."""
        row = await self._desk.find_job(job_id)
        seen: Seen = {}
        job = self._desk.board.jobs.get(row.job_id)
        if job is None:
            async for change in self._stored.watch(row.job_id):
                yield change
            return
        while True:
            changed = self._desk.board.next_change()
            yield look(job, seen)
            if job.is_over:
                return
            await changed.wait()

    async def cancel(self, job_id: str) -> int:
        """Start nothing more of the job and end what runs; counts the trials that this ended or kept from starting."""
        row = await self._desk.find_job(job_id)
        job = self._desk.board.jobs.get(row.job_id)
        if job is None or job.is_over:
            return 0
        waiting = sum(not trial.is_active and trial.may_start for trial in job.trials.values())
        active = await self._desk.cancel_job(row.job_id)
        for line in self._lines:
            line.give_orders()
        return waiting + len(active)

    async def hosts(self) -> tuple[HostStatus, ...]:
        """All hosts that this controller was given."""
        return tuple(self._care.told(line.status()) for line in self._lines)

    async def drain(self, host: str, reason: str) -> None:
        """No new trials there; what runs is measured to its end. Raises NotFound."""
        self._named([host])
        await self._care.drain(host, reason)

    async def undrain(self, host: str) -> None:
        """Trials there again, also where failures had set it aside. Raises NotFound."""
        self._named([host])
        await self._care.undrain(host)

    async def check_hosts(self, hosts: Sequence[str]) -> AsyncIterator[HostCheck]:
        """What stands in the way on each, all when none is named, as each is ready. Raises NotFound."""
        async for check in check_lines(self._named(hosts), self._care.record):
            yield check

    def _named(self, hosts: Sequence[str]) -> list[HostLine]:
        names = [line.host or line.agent.address for line in self._lines]
        for host in hosts:
            if host not in names:
                raise NotFound(f"there is no host {host}", f"there are: {', '.join(sorted(names))}" if names else "no host is known")
        return [line for line, name in zip(self._lines, names, strict=True) if not hosts or name in hosts]

    async def results(self, job_id: str) -> JobResults:
        """Every stored run of a job."""
        return await self._stored.results(job_id)

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """One attempt of a trial, 0 = the newest."""
        return await self._stored.trial(trial_id, attempt, with_log)

    def _refuse_what_cannot_run(self, specs: Sequence[TrialSpec], hosts: Sequence[str]) -> None:
        for spec in specs:
            rooms = {host: self._names[host].room_for(spec.engine.kind) for host in ([spec.host] if spec.host else hosts)}
            if spec.engine.gpus > max(rooms.values()):
                there = ", ".join(f"host {host} has {room}" for host, room in rooms.items())
                raise ConfigError(
                    f"variant {spec.variant} needs {spec.engine.gpus} GPUs, {there}",
                    "lower engine.gpus and the parallel sizes, or choose other hosts",
                )
            self._refuse_what_is_not_allowed(spec, [*rooms])

    def _refuse_what_is_not_allowed(self, spec: TrialSpec, hosts: Sequence[str]) -> None:
        """What the agents would refuse anyway, as far as they have told it: before anything is planned on them."""
        for host in hosts:
            what, entry = refusal(spec.engine, self._names[host].permit)
            if what:
                hint = f"choose another, or have the owner of the fleet write for {host}: allow: {{{entry}}}, then run `fleetctl deploy`"
                raise ConfigError(f"variant {spec.variant}: host {host} does not allow {what}", hint)

    def _placement(self, choice: HostChoice, specs: Sequence[TrialSpec], hosts: Sequence[str]) -> HostChoice:
        """The choice, with the part of a host that a trial takes where others are let in."""
        largest = max(specs, key=lambda spec: spec.engine.gpus)
        rooms = (self._names[host].room_for(largest.engine.kind) for host in hosts)
        room = max((room for room in rooms if room != NOT_KNOWN), default=0)
        return replace(choice, part=min(1.0, largest.engine.gpus / room)) if largest.shared and room else choice

    def _refuse_what_cannot_meet(self, gangs: Iterable[Sequence[str]]) -> None:
        """The members of a gang connect to its lead, so what is known of it must lead there."""
        for lead, *members in gangs:
            far = [host for host in members if self._names[host].meeting_host != LOOPBACK]
            if far and self._names[lead].meeting_host == LOOPBACK:
                raise ConfigError(
                    f"nothing says where host {', '.join(far)} reaches host {lead}: its agent is at {self._names[lead].agent.address}",
                    "the hosts of one server meet at the first: start its agent with --label address=HOST, as the others reach it",
                )


def _gangs(job: Job, plan: Plan) -> set[tuple[str, ...]]:
    """Hosts of one server, the one where they meet first: as planned, or any of them first where a block may go to any."""
    if job.hosts.every_host:
        return {(planned.host, *planned.members) for planned in plan.trials}
    nodes = max(job.engine.gang.nodes, 1)
    return {(lead, *(host for host in plan.hosts if host != lead)) if nodes > 1 else (lead,) for lead in plan.hosts}


def _row(job_id: str, loaded: LoadedJob, planned_s: float) -> JobRow:
    engine = loaded.job.engine
    kind = engine.kind.name.lower()
    time_scale = engine.simulation.time_scale if kind == "simulated" else 1.0
    row = JobRow(job_id, loaded.job.name, loaded.text, loaded.file_name, time.time_ns(), kind, time_scale, planned_s)
    return replace(row, priority=loaded.job.priority)


