"""Owns the controller's picture of its jobs while it works: what the store holds, in memory, and who waits for changes. Starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fleet_controller.core.gang import as_one, folded, member_id, place_of, to_end
from fleet_controller.core.schedule import JobTrials, left_s
from fleet_controller.core.state import Attempt, Trial, is_over, job_state
from fleet_controller.report.values import JobChange, JobDetail, JobSummary, TrialStatus
from fleet_controller.store.store import JobRow
from fleet_protos.errors import ErrorKind
from fleet_protos.trial import Outcome, Phase


class JobOnBoard:
    """One job and its trials by id, in plan order. Counts as it goes: a job may hold 10,000 trials, and each event asks.

    `nodes` are the trials as their hosts tell them; those of a server over several hosts are one of `trials`.
    """

    def __init__(self, row: JobRow, nodes: Iterable[Trial]) -> None:
        self.row = row
        self.trials: dict[str, Trial] = {}
        self.nodes: dict[str, Trial] = {}
        self.progress: dict[str, str] = {}  # of the trials that are launching
        self.trials_over = 0
        self._left_s: float | None = None
        self.nodes = {node.spec.trial_id: node for node in nodes}
        for trial in folded(self.nodes.values()):
            self._put(trial)

    def put(self, node: Trial) -> Trial:
        """A trial, or a node of one, as it is now; the trial after it."""
        self.nodes[node.spec.trial_id] = node
        lead = self.nodes[place_of(node.spec.trial_id)[0]]
        members = (member_id(lead.spec.trial_id, rank) for rank in range(1, lead.spec.engine.gang.nodes))
        trial = as_one(lead, [self.nodes[member] for member in members])
        self._put(trial)
        return trial

    def _put(self, trial: Trial) -> None:
        if trial.newest is None or trial.newest.phase is not Phase.LAUNCHING:
            self.progress.pop(trial.spec.trial_id, None)
        before = self.trials.get(trial.spec.trial_id)
        self.trials[trial.spec.trial_id] = trial
        was_over = before is not None and is_over(before, self.row.cancelled)
        self.trials_over += is_over(trial, self.row.cancelled) - was_over
        moved_on = before is not None and before.is_active and trial.is_active and before.attempts[:-1] == trial.attempts[:-1]
        if not moved_on:  # a trial began or ended
            self._left_s = None

    def cancel(self) -> None:
        """Nothing of it starts any more."""
        self.row = replace(self.row, cancelled=True)
        self.trials_over = sum(is_over(trial, True) for trial in self.trials.values())
        self._left_s = None

    @property
    def is_over(self) -> bool:
        """Nothing more will happen to it."""
        return self.trials_over == len(self.trials)

    @property
    def summary(self) -> JobSummary:
        """As it is listed."""
        return _summary(self.row, list(self.trials.values()), self.trials_over)

    @property
    def left_s(self) -> float:
        """Wall seconds that it still needs, computed anew when a trial began or ended."""
        if self._left_s is None:
            self._left_s = 0.0 if self.is_over else left_s(list(self.trials.values()), self.row.planned_s)
        return self._left_s


class Board:
    """Jobs that are not over, and those that ended while this controller ran."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobOnBoard] = {}
        self._changed = asyncio.Event()

    def put(self, row: JobRow, trials: Iterable[Trial]) -> None:
        """A job that was submitted, or read from the store."""
        self.jobs[row.job_id] = JobOnBoard(row, trials)
        self.tell()

    def change(self, trial_id: str, attempt: Attempt, progress: str = "") -> Trial | None:
        """Put an attempt in its place; the trial after it, that of all nodes, None when it is of no job here.

        `progress`: what its launch tells.
        """
        job = self.job_of(trial_id)
        if job is None:
            return None
        if progress and not place_of(trial_id)[1]:
            job.progress[trial_id] = progress
        trial = job.put(job.nodes[trial_id].changed(attempt))
        self.tell()
        return trial

    def cancel(self, job_id: str) -> list[Trial]:
        """Mark the job cancelled; its trials that are active now."""
        job = self.jobs[job_id]
        job.cancel()
        self.tell()
        return [trial for trial in job.trials.values() if trial.is_active]

    def job_of(self, trial_id: str) -> JobOnBoard | None:
        """The job that holds the trial or the node."""
        return next((job for job in self.jobs.values() if trial_id in job.nodes), None)

    def schedulable(self) -> Iterator[JobTrials]:
        """Open jobs as the scheduler wants them, oldest first."""
        for job in self.jobs.values():
            if not job.is_over:
                yield JobTrials(job.row.job_id, tuple(job.trials.values()), job.row.cancelled)

    def active_on(self, host: str) -> list[tuple[JobOnBoard, Trial]]:
        """Attempts begun on that host and not over, each node of a gang for itself."""
        found = []
        for job in self.jobs.values():
            if job.is_over:
                continue
            found += [(job, node) for node in job.nodes.values() if node.is_active and node.spec.host == host]
        return found

    def to_end(self, trial_id: str) -> str:
        """Why a node must end because another one of its server has ended; empty while it may go on."""
        job = self.job_of(trial_id)
        return to_end(job.trials[place_of(trial_id)[0]]).get(trial_id, "") if job else ""

    def hosts_to_end(self) -> set[str]:
        """Where a node must end because another one has."""
        trials = (trial for job in self.jobs.values() if not job.is_over for trial in job.trials.values())
        ends = ((trial, to_end(trial)) for trial in trials if trial.nodes and trial.is_active)
        return {node.spec.host for trial, end in ends for node in trial.nodes if node.spec.trial_id in end}

    def tell(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Set at the next change; take it before looking, so that no change falls between look and wait."""
        return self._changed


async def wait_for(change: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set, or after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await change.wait()
    except TimeoutError:
        return


def summary(row: JobRow, trials: Iterable[Trial]) -> JobSummary:
    """A job as it is listed."""
    trials = folded(trials)
    return _summary(row, trials, sum(is_over(trial, row.cancelled) for trial in trials))


def _summary(row: JobRow, trials: list[Trial], trials_over: int) -> JobSummary:
    return JobSummary(
        job_id=row.job_id,
        name=row.name,
        state=job_state(trials, row.cancelled),
        submitted_unix_ns=row.submitted_unix_ns,
        trials=len(trials),
        trials_over=trials_over,
        engine=row.engine,
        time_scale=row.time_scale,
    )


def detail(row: JobRow, trials: Iterable[Trial]) -> JobDetail:
    """A job with all its trials."""
    trials = folded(trials)
    return JobDetail(summary(row, trials), tuple(status(trial) for trial in trials), row.yaml)


def look(job: JobOnBoard, seen: dict[str, Trial]) -> JobChange:
    """The job now, with the trials that differ from what was `seen`, which is brought up to date."""
    news = ((trial_id, status(trial)) for trial_id, trial in job.trials.items() if seen.get(trial_id) is not trial)
    changed = tuple(replace(now, progress=job.progress.get(trial_id, "")) for trial_id, now in news)
    seen.update(job.trials)
    return JobChange(job.summary, changed, job.left_s)


def status(trial: Trial, number: int = 0) -> TrialStatus:
    """One attempt of a trial, the newest unless `number` says which."""
    spec = trial.spec
    attempt = next((known for known in trial.attempts if known.number == number), trial.newest)
    base = TrialStatus(spec.trial_id, spec.variant, spec.host, spec.block)
    if attempt is None:
        return base
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


def closed(attempt: Attempt, kind: ErrorKind, failure_class: str, message: str, now_unix_ns: int) -> Attempt:
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
