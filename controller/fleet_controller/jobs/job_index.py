"""Owns the controller's picture of its jobs while it works: what the store holds, in memory, and
who waits for changes. Starts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fleet_controller.core.controller_api import JobChange, JobDetail, JobSummary, TrialStatus
from fleet_controller.core.fairness import HostTimeAccount
from fleet_controller.core.gang import fold_gang, fold_gangs, lead_and_rank, member_id, nodes_to_end
from fleet_controller.core.job import HostChoice
from fleet_controller.core.schedule_inputs import WaitingJob
from fleet_controller.core.scheduler import HopelessTrial, TrialStart, hopeless_trials, remaining_s
from fleet_controller.core.trial_state import Attempt, Trial, is_over, job_state
from fleet_controller.jobs.waiting_index import WaitingIndex
from fleet_controller.planning.job_plan import place_on_host
from fleet_controller.store.store import JobRow
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Phase, TrialSpec


class IndexedJob:
    """One job and its trials by id, in plan order. Counts as it goes: a job may hold 10,000 trials,
    and each event asks.

    `nodes` are the trials as their hosts tell them; those of a server over several hosts are one of
    `trials`.
    """

    def __init__(self, row: JobRow, nodes: Iterable[Trial]) -> None:
        self.row = row
        self.choice = HostChoice.from_json(row.placement)
        self.trials: dict[str, Trial] = {}
        self.nodes: dict[str, Trial] = {node.spec.trial_id: node for node in nodes}
        self.progress: dict[str, str] = {}  # of the trials that are launching
        self.active: dict[str, Trial] = {}
        self.hosts_used: set[str] = set()  # hosts that trials of it have
        self.trials_over = 0
        self.trouble = ""
        self.trouble_inputs: tuple[WaitingJob, str] | None = (
            None  # what waited when `trouble` was found, and what it was
        )
        self.may_hold_hopeless = True
        self._left_s: float | None = None
        self._waiting: WaitingJob | None = None
        self._account = HostTimeAccount(row.joined_s, share=self.choice.part)
        trials = fold_gangs(self.nodes.values())
        self._waiting_index = WaitingIndex(trial.spec.trial_id for trial in trials)
        for trial in trials:
            self._update_trial(trial)
        self._planned_trial_s = row.planned_s / max(
            1, -(-len(trials) // max(1, len(self.hosts_used)))
        )

    def update_node(self, node: Trial) -> Trial:
        """A trial, or a node of one, as it is now; the trial after it."""
        self.nodes[node.spec.trial_id] = node
        lead = self.nodes[lead_and_rank(node.spec.trial_id)[0]]
        members = (
            member_id(lead.spec.trial_id, rank) for rank in range(1, lead.spec.engine.gang.nodes)
        )
        trial = fold_gang(lead, [self.nodes[member] for member in members])
        self._update_trial(trial)
        return trial

    def _update_trial(self, trial: Trial) -> None:
        trial_id = trial.spec.trial_id
        if trial.newest is None or trial.newest.phase is not Phase.LAUNCHING:
            self.progress.pop(trial_id, None)
        before = self.trials.get(trial_id)
        self.trials[trial_id] = trial
        was_over = before is not None and is_over(before, self.row.cancelled)
        self.trials_over += is_over(trial, self.row.cancelled) - was_over
        moved_on = (
            before is not None
            and before.is_active
            and trial.is_active
            and before.attempts[:-1] == trial.attempts[:-1]
        )
        if not moved_on:  # a trial began or ended
            self._left_s = None
            self._update_waiting(before, trial)
        if trial.is_active:
            self.active[trial_id] = trial
        else:
            self.active.pop(trial_id, None)

    def _update_waiting(self, before: Trial | None, trial: Trial) -> None:
        self._waiting = None
        self._account = self._account.with_change(before, trial)
        self.hosts_used.update(host for host in trial.hosts if host)
        if not self.row.cancelled:
            self._waiting_index.update(trial)
        if trial.newest is not None and trial.newest.failed_for_good:
            self.may_hold_hopeless = True

    def cancel(self) -> None:
        """Nothing of it starts any more."""
        self.row = replace(self.row, cancelled=True)
        self._waiting_index.clear()
        self._waiting = None
        self.trials_over = sum(is_over(trial, True) for trial in self.trials.values())
        self._left_s = None

    @property
    def waiting(self) -> WaitingJob:
        """What of it may begin, and whose turn that is; the same value until one of its trials
        begins or ends.
        """
        if self._waiting is None:
            self._waiting = WaitingJob(
                self.row.job_id,
                self._waiting_index.pinned,
                self._waiting_index.ordered_blocks,
                self.choice,
                frozenset(self.hosts_used),
                self.row.priority,
                self.host_time_s,
                self._account.trial_s(self._planned_trial_s),
            )
        return self._waiting

    @property
    def host_time_s(self) -> float:
        """Host seconds that it counts as having had."""
        hosts = sum(len(trial.hosts) for trial in self.active.values())
        return self._account.host_time_s(hosts, self._account.trial_s(self._planned_trial_s))

    def has_priority(self, priority: int) -> bool:
        """It takes turns with jobs of that priority."""
        return self.row.priority == priority

    def catch_up(self, others: Iterable[IndexedJob]) -> None:
        """It begins after it had nothing running, beside these that run: what it could not use is
        not owed to it.
        """
        trial_s = self._account.trial_s(self._planned_trial_s)
        before_s = (
            self.host_time_s - sum(len(trial.hosts) for trial in self.active.values()) * trial_s
        )
        self._account = self._account.caught_up(
            before_s, min((other.host_time_s for other in others), default=before_s)
        )
        self._waiting = None

    def works_elsewhere(self, trial: Trial) -> bool:
        """The variant of a trial was launched well on another host."""
        spec = trial.spec
        return any(
            other.spec.variant == spec.variant
            and other.spec.host != spec.host
            and other.newest
            and other.newest.outcome is Outcome.OK
            for other in self.trials.values()
        )

    @property
    def is_over(self) -> bool:
        """Nothing more will happen to it."""
        return self.trials_over == len(self.trials)

    @property
    def summary(self) -> JobSummary:
        """As it is listed."""
        return replace(
            _job_summary(self.row, list(self.trials.values()), self.trials_over),
            trouble="" if self.is_over else self.trouble,
        )

    @property
    def left_s(self) -> float:
        """Wall seconds that it still needs, computed anew when a trial began or ended."""
        if self._left_s is None:
            self._left_s = (
                0.0 if self.is_over else remaining_s(list(self.trials.values()), self.row.planned_s)
            )
        return self._left_s


_KEPT_OVER = 16


class JobIndex:
    """Jobs that are not over, and of those that ended while this controller ran the last 16: what
    is older is in the store alone.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, IndexedJob] = {}
        self._job_of: dict[str, IndexedJob] = {}  # by trial and node
        self._active: dict[str, IndexedJob] = {}  # by trial
        self._open: dict[str, IndexedJob] = {}
        self._changed = asyncio.Event()

    def add(self, row: JobRow, trials: Iterable[Trial]) -> None:
        """A job that was submitted, or read from the store."""
        job = self.jobs[row.job_id] = IndexedJob(row, trials)
        self._job_of.update(dict.fromkeys(job.nodes, job))
        self._active.update(dict.fromkeys(job.active, job))
        if not job.is_over:
            self._open[row.job_id] = job
        self.notify()

    def update_attempt(self, trial_id: str, attempt: Attempt, progress: str = "") -> Trial | None:
        """Put an attempt in its place; the trial after it, that of all nodes, None when it is of no
        job here.

        `progress`: what its launch tells.
        """
        job = self.job_of(trial_id)
        if job is None:
            return None
        if progress and not lead_and_rank(trial_id)[1]:
            job.progress[trial_id] = progress
        was_idle = not job.active
        trial = job.update_node(job.nodes[trial_id].with_attempt(attempt))
        if was_idle and job.active:
            job.catch_up(self.running_jobs(job))
        if trial.is_active:
            self._active[trial.spec.trial_id] = job
        else:
            self._active.pop(trial.spec.trial_id, None)
        if job.is_over and job.row.job_id in self._open:
            del self._open[job.row.job_id]
            self._forget_the_oldest()
        self.notify()
        return trial

    def _forget_the_oldest(self) -> None:
        over = [job_id for job_id, job in self.jobs.items() if job.is_over]
        for job_id in over[:-_KEPT_OVER]:
            for node in self.jobs.pop(job_id).nodes:
                del self._job_of[node]

    def assign_hosts(self, specs: Iterable[TrialSpec]) -> None:
        """Trials, each node for itself, that have a host from here on."""
        for spec in specs:
            job = self._job_of[spec.trial_id]
            job.update_node(replace(job.nodes[spec.trial_id], spec=spec))

    def specs_for_start(self, start: TrialStart) -> list[TrialSpec]:
        """The trials of the block that a start takes to its hosts, each node for itself."""
        job = self._job_of[start.trial_id]
        hosts = (start.host, *(host for _, host in start.members))
        blocks = (job.trials[trial_id].nodes or (job.trials[trial_id],) for trial_id in start.block)
        return [
            place_on_host(node.spec, host, job.hosts_used)
            for nodes in blocks
            for node, host in zip(nodes, hosts, strict=True)
        ]

    def cancel(self, job_id: str) -> list[Trial]:
        """Mark the job cancelled; its trials that are active now."""
        job = self.jobs[job_id]
        job.cancel()
        if job.is_over:
            self._open.pop(job_id, None)
        self.notify()
        return list(job.active.values())

    def job_of(self, trial_id: str) -> IndexedJob | None:
        """The job that holds the trial or the node."""
        return self._job_of.get(trial_id)

    def is_known_over(self, trial_id: str, number: int) -> bool:
        """The attempt of a trial or node has ended before, or is of no job here."""
        job = self.job_of(trial_id)
        return job is None or any(
            known.number == number and known.is_over for known in job.nodes[trial_id].attempts
        )

    @property
    def open_jobs(self) -> tuple[IndexedJob, ...]:
        """Those that are not over, oldest first."""
        return tuple(self._open.values())

    def running_jobs(self, excluding: IndexedJob) -> list[IndexedJob]:
        """The other jobs of its priority that have something running."""
        jobs = {id(job): job for job in self._active.values()}.values()
        return [
            job for job in jobs if job is not excluding and job.has_priority(excluding.row.priority)
        ]

    def host_times(self, priority: int) -> list[tuple[float, float]]:
        """What jobs of that priority have had and what one more trial is reckoned at: of those that
        run, else of those that wait.
        """
        jobs = [job for job in self.open_jobs if job.has_priority(priority)]
        return [
            (job.host_time_s, job.waiting.trial_s)
            for job in [job for job in jobs if job.active] or jobs
        ]

    def newly_hopeless(self) -> Iterator[HopelessTrial]:
        """Trials that are not to be launched, since their variant failed for good; each job is
        looked at once after such a failure.
        """
        for job in self.open_jobs:
            if job.may_hold_hopeless and not job.row.cancelled:
                job.may_hold_hopeless = False
                yield from hopeless_trials(list(job.trials.values()))

    def running_by_host(self) -> dict[str, list[Trial]]:
        """The active trials of each host."""
        found: dict[str, list[Trial]] = {}
        for trial_id, job in self._active.items():
            trial = job.trials[trial_id]
            for host in trial.hosts:
                found.setdefault(host, []).append(trial)
        return found

    def load_hosts_in_use(self) -> set[str]:
        """Hosts that send the load of an active trial."""
        return {
            host
            for trial_id, job in self._active.items()
            for host in job.trials[trial_id].spec.load.hosts
        }

    def active_on(self, host: str) -> list[tuple[IndexedJob, Trial]]:
        """Attempts begun on that host and not over, each node of a gang for itself."""
        active = ((job, job.trials[trial_id]) for trial_id, job in self._active.items())
        nodes = (
            (job, node)
            for job, trial in active
            if host in trial.hosts
            for node in trial.nodes or (trial,)
        )
        return [
            (job, job.nodes[node.spec.trial_id])
            for job, node in nodes
            if node.spec.host == host and node.is_active
        ]

    def end_reason(self, trial_id: str) -> str:
        """Why a node must end because another one of its server has ended; empty while it may go
        on.
        """
        job = self.job_of(trial_id)
        return nodes_to_end(job.trials[lead_and_rank(trial_id)[0]]).get(trial_id, "") if job else ""

    def hosts_with_nodes_to_end(self) -> set[str]:
        """Where a node must end because another one has."""
        trials = (job.trials[trial_id] for trial_id, job in self._active.items())
        ends = ((trial, nodes_to_end(trial)) for trial in trials if trial.nodes)
        return {
            node.spec.host
            for trial, end in ends
            for node in trial.nodes
            if node.spec.trial_id in end
        }

    def notify(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Set at the next change; take it before looking, so that no change falls between look and
        wait.
        """
        return self._changed


async def wait_until_set(change: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set, or after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await change.wait()
    except TimeoutError:
        return


def job_summary(row: JobRow, trials: Iterable[Trial]) -> JobSummary:
    """A job as it is listed."""
    trials = fold_gangs(trials)
    return _job_summary(row, trials, sum(is_over(trial, row.cancelled) for trial in trials))


def _job_summary(row: JobRow, trials: list[Trial], trials_over: int) -> JobSummary:
    return JobSummary(
        job_id=row.job_id,
        name=row.name,
        state=job_state(trials, row.cancelled),
        submitted_unix_ns=row.submitted_unix_ns,
        trials=len(trials),
        trials_over=trials_over,
        engine=row.engine,
        time_scale=row.time_scale,
        priority=row.priority,
    )


def job_detail(row: JobRow, trials: Iterable[Trial], trouble: str = "") -> JobDetail:
    """A job with all its trials."""
    trials = fold_gangs(trials)
    job = replace(job_summary(row, trials), trouble=trouble)
    return JobDetail(
        job, tuple(trial_status(trial, is_cancelled=row.cancelled) for trial in trials), row.yaml
    )


SeenTrials = dict[str, tuple[Trial, bool]]  # the trial, and whether its job was cancelled


def job_change(job: IndexedJob, seen: SeenTrials) -> JobChange:
    """The job now, with the trials that differ from what was `seen`, which is brought up to date."""
    cancelled = job.row.cancelled
    news = [
        (trial_id, trial)
        for trial_id, trial in job.trials.items()
        if not _is_unchanged(seen.get(trial_id), trial, cancelled)
    ]
    changed = tuple(
        replace(
            trial_status(trial, is_cancelled=cancelled), progress=job.progress.get(trial_id, "")
        )
        for trial_id, trial in news
    )
    seen.update({trial_id: (trial, cancelled) for trial_id, trial in news})
    return JobChange(job.summary, changed, job.left_s)


def _is_unchanged(seen: tuple[Trial, bool] | None, trial: Trial, cancelled: bool) -> bool:
    return seen is not None and seen[0] is trial and seen[1] is cancelled


def trial_status(trial: Trial, number: int = 0, *, is_cancelled: bool = False) -> TrialStatus:
    """One attempt of a trial, the newest unless `number` says which; `is_cancelled`: its job is, so
    nothing of it begins any more.
    """
    spec = trial.spec
    attempt = next((known for known in trial.attempts if known.number == number), trial.newest)
    base = TrialStatus(
        spec.trial_id, spec.variant, spec.host, spec.block, nodes=trial.hosts if trial.nodes else ()
    )
    if attempt is None:
        end = replace(
            base, phase=Phase.OVER, outcome=Outcome.CANCELLED, message="cancelled before it began"
        )
        return end if is_cancelled else base
    return replace(
        base,
        attempt=attempt.number,
        phase=attempt.phase,
        outcome=attempt.outcome,
        kind=attempt.kind,
        failure_class=attempt.failure_class,
        message=attempt.message,
        runs=attempt.runs,
    )


def ended_by_controller(
    attempt: Attempt, kind: ErrorKind, failure_class: str, message: str, now_unix_ns: int
) -> Attempt:
    """An attempt that the controller itself ends, because no agent will tell its end."""
    return replace(
        attempt,
        phase=Phase.OVER,
        outcome=Outcome.FAILED,
        kind=kind,
        failure_class=failure_class,
        message=message,
        ended_unix_ns=now_unix_ns,
    )
