"""Holds the jobs of a running controller in memory, and wakes the tasks that wait for a change."""

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
    """The jobs that are not over, and the last 16 jobs that ended while this controller ran. Older
    jobs are only in the store.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, IndexedJob] = {}
        self._job_of: dict[str, IndexedJob] = {}  # by trial and node
        self._active: dict[str, IndexedJob] = {}  # by trial
        self._open: dict[str, IndexedJob] = {}
        self.held: frozenset[str] = frozenset()  # jobs of which this controller begins no trial
        self.interrupted = False  # no trial begins any more, and the running ones are ended
        self._changed = asyncio.Event()

    def add(self, row: JobRow, trials: Iterable[Trial]) -> None:
        """Add a job that was submitted or read from the store."""
        job = self.jobs[row.job_id] = IndexedJob(row, trials)
        self._job_of.update(dict.fromkeys(job.nodes, job))
        self._active.update(dict.fromkeys(job.active, job))
        if not job.is_over:
            self._open[row.job_id] = job
        self.notify()

    def update_attempt(self, trial_id: str, attempt: Attempt, progress: str = "") -> Trial | None:
        """Replace an attempt and return its trial after the change, with all its nodes. Return None
        if the trial belongs to no job in this index.

        `progress` says how far the launch of the attempt has come.
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
        """Replace the specs of trials and nodes to which a host was assigned."""
        for spec in specs:
            job = self._job_of[spec.trial_id]
            job.update_node(replace(job.nodes[spec.trial_id], spec=spec))

    def specs_for_start(self, start: TrialStart) -> list[TrialSpec]:
        """Return the specs of all trials of the block, placed on the hosts of this start. Each node
        of a trial has a spec of its own.
        """
        job = self._job_of[start.trial_id]
        hosts = (start.host, *(host for _, host in start.members))
        blocks = (job.trials[trial_id].nodes or (job.trials[trial_id],) for trial_id in start.block)
        return [
            place_on_host(node.spec, host, job.hosts_used)
            for nodes in blocks
            for node, host in zip(nodes, hosts, strict=True)
        ]

    def cancel(self, job_id: str) -> list[Trial]:
        """Mark the job as cancelled and return its active trials."""
        job = self.jobs[job_id]
        job.cancel()
        if job.is_over:
            self._open.pop(job_id, None)
        self.notify()
        return list(job.active.values())

    def job_of(self, trial_id: str) -> IndexedJob | None:
        """Return the job to which the trial or node belongs, or None."""
        return self._job_of.get(trial_id)

    def is_known_over(self, trial_id: str, number: int) -> bool:
        """Return whether the attempt of a trial or node has ended. Return True also if the trial
        belongs to no job in this index.
        """
        job = self.job_of(trial_id)
        return job is None or any(
            known.number == number and known.is_over for known in job.nodes[trial_id].attempts
        )

    @property
    def open_jobs(self) -> tuple[IndexedJob, ...]:
        """Return the jobs that are not over, the oldest first."""
        return tuple(self._open.values())

    def hold_other_jobs(self, job_id: str) -> None:
        """Begin no trial of the jobs that are open now, except those of `job_id`."""
        self.held = frozenset(self._open) - {job_id}

    @property
    def jobs_to_start(self) -> list[IndexedJob]:
        """Return the open jobs whose trials may begin, the oldest first."""
        if self.interrupted:
            return []
        return [job for job_id, job in self._open.items() if job_id not in self.held]

    def running_jobs(self, excluding: IndexedJob) -> list[IndexedJob]:
        """Return the other jobs that have an active trial and the same priority as `excluding`."""
        jobs = {id(job): job for job in self._active.values()}.values()
        return [
            job for job in jobs if job is not excluding and job.has_priority(excluding.row.priority)
        ]

    def host_times(self, priority: int) -> list[tuple[float, float]]:
        """Return (host time, expected seconds of a trial) for each running job of this priority. If
        none of these jobs runs, return the pairs of the waiting jobs.
        """
        jobs = [job for job in self.open_jobs if job.has_priority(priority)]
        return [
            (job.host_time_s, job.waiting.trial_s)
            for job in [job for job in jobs if job.active] or jobs
        ]

    def newly_hopeless(self) -> Iterator[HopelessTrial]:
        """Yield trials that will not be launched because their variant failed for good. After each
        such failure, the trials of the job are checked once.
        """
        for job in self.open_jobs:
            if job.may_hold_hopeless and not job.row.cancelled:
                job.may_hold_hopeless = False
                yield from hopeless_trials(list(job.trials.values()))

    def running_by_host(self) -> dict[str, list[Trial]]:
        """Return the active trials of each host."""
        found: dict[str, list[Trial]] = {}
        for trial_id, job in self._active.items():
            trial = job.trials[trial_id]
            for host in trial.hosts:
                found.setdefault(host, []).append(trial)
        return found

    def load_hosts_in_use(self) -> set[str]:
        """Return the hosts that send the load of an active trial."""
        return {
            host
            for trial_id, job in self._active.items()
            for host in job.trials[trial_id].spec.load.hosts
        }

    def active_on(self, host: str) -> list[tuple[IndexedJob, Trial]]:
        """Return the attempts that were begun on this host and are not over. Each node of a gang is
        returned separately.
        """
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
        """Return why a node must end because another node of its server has ended. Return an empty
        text if the node may continue.
        """
        job = self.job_of(trial_id)
        return nodes_to_end(job.trials[lead_and_rank(trial_id)[0]]).get(trial_id, "") if job else ""

    def hosts_with_nodes_to_end(self) -> set[str]:
        """Return the hosts on which a node must end because another node has ended."""
        trials = (job.trials[trial_id] for trial_id, job in self._active.items())
        ends = ((trial, nodes_to_end(trial)) for trial in trials if trial.nodes)
        return {
            node.spec.host
            for trial, end in ends
            for node in trial.nodes
            if node.spec.trial_id in end
        }

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Return an event that is set at the next change. Get the event before you read the state,
        so that no change between the two steps is missed.
        """
        return self._changed


async def wait_until_set(change: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set, or after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await change.wait()
    except TimeoutError:
        return
