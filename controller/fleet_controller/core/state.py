"""Owns how events become the state of attempts, trials and jobs: a fold, derived anew each time and never stored as a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet_controller.core.retry import FOR_GOOD, VOID_RUNS, may_retry
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial import Outcome, Phase, TrialSpec


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a trial. `agent_id` is empty until an agent has accepted it; times are unix nanoseconds, 0 = not yet."""

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
        """Nothing more will come of it."""
        return self.phase is Phase.OVER

    @property
    def failed_for_good(self) -> bool:
        """It would fail again in any later launch. Void runs are no such end, a gate on the launch itself is."""
        voided = self.kind is ErrorKind.GATE_VOIDED and self.runs < VOID_RUNS
        return self.is_over and self.outcome is Outcome.FAILED and (voided or self.kind in FOR_GOOD)


@dataclass(frozen=True, slots=True)
class Trial:
    """A planned trial and its attempts so far, oldest first. `nodes`: lead and members where its server is on several hosts."""

    spec: TrialSpec
    attempts: tuple[Attempt, ...] = ()
    nodes: tuple[Trial, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that it takes, the one that serves first."""
        return tuple(node.spec.host for node in self.nodes) or (self.spec.host,)

    @property
    def newest(self) -> Attempt | None:
        """The attempt that counts."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_active(self) -> bool:
        """An attempt was begun and is not over."""
        return self.newest is not None and not self.newest.is_over

    @property
    def may_start(self) -> bool:
        """No attempt yet, or the last one ended in a way that is tried again; whether the job still wants it is another question."""
        newest = self.newest
        if newest is None:
            return True
        ends = [_why(attempt) for attempt in self.attempts if attempt.is_over and attempt.outcome is not Outcome.OK]
        return newest.is_over and newest.outcome is not Outcome.OK and may_retry(ends)

    def changed(self, attempt: Attempt) -> Trial:
        """This trial with that attempt put in place of the one with its number, or after all others."""
        others = tuple(known for known in self.attempts if known.number != attempt.number)
        return replace(self, attempts=tuple(sorted((*others, attempt), key=lambda known: known.number)))


def _why(attempt: Attempt) -> ErrorKind:
    """An attempt that ended cancelled in a job that nobody cancelled: its agent was told to stop."""
    return ErrorKind.AGENT_RESTARTED if attempt.outcome is Outcome.CANCELLED else attempt.kind


def after(attempt: Attempt, event: ev.Event, agent_id: str) -> Attempt:
    """The attempt once `event` of that agent happened. An attempt that is over stays as it is."""
    if attempt.is_over:
        return attempt
    moved = replace(attempt, phase=event.phase, agent_id=agent_id)
    match event.body:
        case ev.TrialAccepted():
            return replace(moved, started_unix_ns=event.time_unix_ns)
        case ev.RunFinished():
            return replace(moved, runs=attempt.runs + 1)
        case ev.TrialOver(outcome=outcome, kind=kind, failure_class=failure_class, message=message):
            return replace(
                moved,
                phase=Phase.OVER,
                outcome=outcome,
                kind=kind,
                failure_class=failure_class,
                message=message,
                ended_unix_ns=event.time_unix_ns,
            )
    return moved


def is_over(trial: Trial, cancelled: bool) -> bool:
    """Nothing more will happen to the trial; `cancelled` is its job's."""
    return not trial.is_active and (cancelled or not trial.may_start)


def job_state(trials: Iterable[Trial], cancelled: bool) -> str:
    """queued, running, done, failed or cancelled: from the trials alone. Done: each trial has an attempt that ended OK."""
    trials = list(trials)
    if not all(is_over(trial, cancelled) for trial in trials):
        return "running" if any(trial.attempts for trial in trials) else "queued"
    if all(trial.newest is not None and trial.newest.outcome is Outcome.OK for trial in trials):
        return "done"
    return "cancelled" if cancelled else "failed"
