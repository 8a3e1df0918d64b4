"""Derives the state of attempts, trials and jobs from events. The state of a job is always derived
from its trials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet_controller.core.retry import FOR_GOOD, INTERRUPTIONS_MAX, VOID_RUNS, may_retry
from fleet_protos import events as ev
from fleet_protos.errors import AGENT_STOPPED, ErrorKind
from fleet_protos.trial_types import Outcome, Phase, TrialSpec

# failure class of attempts that the controller ends because the host was away for too long
HOST_GIVEN_UP = "host_given_up"


@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's clock compared with the controller's clock.

    - `ahead_ns`: how far the host's clock is ahead.
    - `now_unix_ns`: the time by the controller's clock; 0 if unknown.
    """

    ahead_ns: int = 0
    now_unix_ns: int = 0

    def to_controller_time(self, time_unix_ns: int) -> int:
        """Convert a time by the host's clock to the controller's clock. The result is never later
        than now, even if the host's clock jumped.
        """
        our_time_ns = time_unix_ns - self.ahead_ns
        return min(our_time_ns, self.now_unix_ns) if self.now_unix_ns else our_time_ns


NO_SKEW = HostClock()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a trial. `agent_id` is empty until an agent has accepted the attempt.

    Times are unix nanoseconds by the controller's clock, so that times of different hosts can be
    compared. A time of 0 means that the attempt has not started or not ended yet.
    """

    number: int
    agent_id: str = ""
    phase: Phase = Phase.QUEUED
    outcome: Outcome = Outcome.UNSPECIFIED
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""
    runs: int = 0
    started_unix_ns: int = 0
    ended_unix_ns: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether the attempt has ended."""
        return self.phase is Phase.OVER

    @property
    def failed_for_good(self) -> bool:
        """Return whether the attempt failed in a way that any later launch would repeat. A gate
        that voided the launch counts. A gate that voided only runs does not count.
        """
        voided = self.kind is ErrorKind.GATE_VOIDED and self.runs < VOID_RUNS
        return self.is_over and self.outcome is Outcome.FAILED and (voided or self.kind in FOR_GOOD)


@dataclass(frozen=True, slots=True)
class Trial:
    """A planned trial and its attempts so far, the oldest first. For a server over several hosts,
    `nodes` holds lead and members.
    """

    spec: TrialSpec
    attempts: tuple[Attempt, ...] = ()
    nodes: tuple[Trial, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return all hosts of the trial, with the lead's host first."""
        return tuple(node.spec.host for node in self.nodes) or (self.spec.host,)

    @property
    def newest(self) -> Attempt | None:
        """Return the newest attempt, which is the one that counts, or None."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_active(self) -> bool:
        """Return whether an attempt was begun and is not over."""
        return self.newest is not None and not self.newest.is_over

    @property
    def may_start(self) -> bool:
        """Return whether the trial has no attempt yet or its last attempt may be retried. Whether
        the job was cancelled is not checked here.
        """
        newest = self.newest
        if newest is None:
            return True
        if newest.failure_class == HOST_GIVEN_UP:
            return False
        if _was_interrupted(newest):
            return sum(map(_was_interrupted, self.attempts)) <= INTERRUPTIONS_MAX
        failures = [attempt.kind for attempt in self.attempts if _counts_as_failure(attempt)]
        return _counts_as_failure(newest) and may_retry(failures)

    def with_attempt(self, attempt: Attempt) -> Trial:
        """Return the trial with this attempt. An attempt with the same number is replaced."""
        others = tuple(known for known in self.attempts if known.number != attempt.number)
        return replace(
            self, attempts=tuple(sorted((*others, attempt), key=lambda known: known.number))
        )


def _was_interrupted(attempt: Attempt) -> bool:
    """Return whether the attempt ended because a user ordered it: by Ctrl-C, or by stopping its
    agent. Such an attempt is repeated and does not count as a failure.
    """
    stopped = attempt.failure_class == AGENT_STOPPED or attempt.outcome is Outcome.CANCELLED
    return attempt.is_over and stopped


def _counts_as_failure(attempt: Attempt) -> bool:
    failed = attempt.is_over and attempt.outcome is not Outcome.OK
    return failed and not _was_interrupted(attempt)


def apply_event(
    attempt: Attempt,
    event: ev.Event,
    agent_id: str,
    clock: HostClock = NO_SKEW,
    *,
    is_newest: bool = True,
) -> Attempt:
    """Return the attempt after an event of this agent. Events of another journal and events after
    the end of the attempt change nothing.

    For an attempt that was given up, later events of its host do count; see `_apply_late_event`.
    `is_newest` says that no attempt was begun after this one.
    """
    if attempt.agent_id and attempt.agent_id != agent_id:
        return attempt
    if attempt.is_over:
        return (
            _apply_late_event(attempt, event, agent_id, clock, is_newest)
            if attempt.failure_class == HOST_GIVEN_UP
            else attempt
        )
    moved = replace(attempt, phase=event.phase or attempt.phase, agent_id=agent_id)
    match event.body:
        case ev.TrialAccepted():
            return replace(moved, started_unix_ns=clock.to_controller_time(event.time_unix_ns))
        case ev.RunFinished():
            return replace(moved, runs=attempt.runs + 1)
        case ev.TrialOver():
            return _apply_end(moved, event.body, clock.to_controller_time(event.time_unix_ns))
    return moved


def _apply_late_event(
    attempt: Attempt, event: ev.Event, agent_id: str, clock: HostClock, is_newest: bool
) -> Attempt:
    """Return the attempt after an event that arrived when the attempt had been given up.

    Its runs are counted. An OK end replaces the end that the controller wrote, unless a newer
    attempt was begun. Any other end is ignored, because the controller's end says why the attempt
    was given up.
    """
    updated = replace(attempt, agent_id=agent_id)
    match event.body:
        case ev.TrialAccepted():
            return replace(updated, started_unix_ns=clock.to_controller_time(event.time_unix_ns))
        case ev.RunFinished():
            return replace(updated, runs=attempt.runs + 1)
        case ev.TrialOver(outcome=Outcome.OK) if is_newest:
            return _apply_end(updated, event.body, clock.to_controller_time(event.time_unix_ns))
    return updated


def _apply_end(attempt: Attempt, over: ev.TrialOver, ended_unix_ns: int) -> Attempt:
    return replace(
        attempt,
        phase=Phase.OVER,
        outcome=over.outcome,
        kind=over.kind,
        failure_class=over.failure_class,
        message=over.message,
        ended_unix_ns=max(ended_unix_ns, attempt.started_unix_ns),
    )


def is_over(trial: Trial, cancelled: bool) -> bool:
    """Return whether nothing more will happen to the trial. `cancelled` says whether its job was
    cancelled.
    """
    return not trial.is_active and (cancelled or not trial.may_start)


def job_state(trials: Iterable[Trial], cancelled: bool) -> str:
    """Return the state of a job from its trials alone: queued, running, done, failed or cancelled.
    A job is done if the newest attempt of each trial ended OK.
    """
    trials = list(trials)
    if not all(is_over(trial, cancelled) for trial in trials):
        return "running" if any(trial.attempts for trial in trials) else "queued"
    if all(trial.newest is not None and trial.newest.outcome is Outcome.OK for trial in trials):
        return "done"
    return "cancelled" if cancelled else "failed"


def ended_by_controller(
    attempt: Attempt, kind: ErrorKind, failure_class: str, message: str, now_unix_ns: int
) -> Attempt:
    """Return the attempt as ended by the controller, because no agent will report its end."""
    return replace(
        attempt,
        phase=Phase.OVER,
        outcome=Outcome.FAILED,
        kind=kind,
        failure_class=failure_class,
        message=message,
        ended_unix_ns=now_unix_ns,
    )
