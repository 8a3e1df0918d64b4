"""Owns the controller's picture of its jobs while it works: what the store holds, in memory, and
who waits for changes. Starts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fleet_controller.core.gang import lead_and_rank, nodes_to_end
from fleet_controller.core.scheduler import HopelessTrial, TrialStart, hopeless_trials
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.jobs.indexed_job import IndexedJob
from fleet_controller.planning.job_plan import place_on_host
from fleet_controller.store.rows import JobRow
from fleet_protos.trial_types import TrialSpec

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
