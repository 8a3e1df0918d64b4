"""Holds one job with its trials in memory, and finds what changed in the job since a watcher last
looked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleet_controller.core.controller_api import JobChange, JobSummary
from fleet_controller.core.fairness import HostTimeAccount
from fleet_controller.core.gang import fold_gang, fold_gangs, lead_and_rank, member_id
from fleet_controller.core.job import HostChoice
from fleet_controller.core.schedule_inputs import WaitingJob
from fleet_controller.core.scheduler import remaining_s
from fleet_controller.core.trial_state import Trial, is_over
from fleet_controller.jobs.job_views import summarize_trials, trial_status
from fleet_controller.jobs.waiting_index import WaitingIndex
from fleet_controller.store.rows import JobRow
from fleet_protos.trial_types import Outcome, Phase

NOT_READY = "not ready: "  # begins the progress of a trial whose external server is not ready


class IndexedJob:
    """One job and its trials by id, in plan order. Counts are kept up to date, because a job may
    have 10,000 trials and each event reads the counts.

    `nodes` holds the trials as their hosts report them. If a server has nodes on several hosts, the
    nodes are merged into a single entry of `trials`.
    """

    def __init__(self, row: JobRow, nodes: Iterable[Trial]) -> None:
        self.row = row
        self.choice = HostChoice.from_json(row.placement)
        self.trials: dict[str, Trial] = {}
        self.nodes: dict[str, Trial] = {node.spec.trial_id: node for node in nodes}
        self.progress: dict[str, str] = {}  # of the launching trials, by trial id
        self.active: dict[str, Trial] = {}
        self.hosts_used: set[str] = set()  # hosts that its trials are assigned to
        self.trials_over = 0
        self.trouble = ""
        # what waited and behind what when `trouble` was computed, and its value then
        self.trouble_inputs: tuple[WaitingJob, str, str] | None = None
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
        """Replace a trial or one node of a trial. Return the trial after the change."""
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
        """Mark the job as cancelled, so that no trial starts any more."""
        self.row = replace(self.row, cancelled=True)
        self._waiting_index.clear()
        self._waiting = None
        self.trials_over = sum(is_over(trial, True) for trial in self.trials.values())
        self._left_s = None

    @property
    def waiting(self) -> WaitingJob:
        """Return which trials of the job may begin. The value stays the same until a trial of the
        job begins or ends.
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
        """Return the host time of the job in seconds; see `core.fairness`."""
        hosts = sum(len(trial.hosts) for trial in self.active.values())
        return self._account.host_time_s(hosts, self._account.trial_s(self._planned_trial_s))

    def has_priority(self, priority: int) -> bool:
        """Return whether the job has this priority."""
        return self.row.priority == priority

    def catch_up(self, others: Iterable[IndexedJob]) -> None:
        """Raise the job's host time to the smallest host time of `others`, the running jobs. Call
        this when a job that had no running trial starts one.
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
        """Return whether a trial of the same variant ended well on another host."""
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
        """Return whether nothing more will happen to the job."""
        return self.trials_over == len(self.trials)

    @property
    def summary(self) -> JobSummary:
        """Return the job's summary for the list of jobs."""
        return replace(
            summarize_trials(self.row, list(self.trials.values()), self.trials_over),
            trouble=self.reported_trouble,
        )

    @property
    def reported_trouble(self) -> str:
        """Return what delays the job: what it waits for, or what an external server lacks."""
        if self.is_over:
            return ""
        waits = (text for text in self.progress.values() if text.startswith(NOT_READY))
        return self.trouble or next(waits, "")

    @property
    def left_s(self) -> float:
        """Return the wall seconds that the job still needs. The value is recomputed when a trial
        begins or ends.
        """
        if self._left_s is None:
            self._left_s = (
                0.0 if self.is_over else remaining_s(list(self.trials.values()), self.row.planned_s)
            )
        return self._left_s


SeenTrials = dict[str, tuple[Trial, bool]]  # the trial, and whether its job was cancelled


def job_change(job: IndexedJob, seen: SeenTrials) -> JobChange:
    """Return the state of the job with the trials that changed since `seen`. Update `seen` to the
    state that is returned.
    """
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
