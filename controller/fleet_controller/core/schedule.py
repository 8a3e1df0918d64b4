"""Owns which trial starts next on which host, which never does, and in what order. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fleet_controller.core.retry import rule_for
from fleet_controller.core.state import Trial
from fleet_protos.errors import ErrorKind
from fleet_protos.trial import Outcome


@dataclass(frozen=True, slots=True)
class JobTrials:
    """The trials of one job in plan order."""

    job_id: str
    trials: Sequence[Trial]
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Begin this attempt of this trial on its host, and together with it that of each other node: (trial id, host)."""

    trial_id: str
    attempt: int
    host: str
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NotAgain:
    """This trial is never launched: the same variant failed for good on its host."""

    trial_id: str
    kind: ErrorKind
    failure_class: str
    message: str


def not_again(jobs: Iterable[JobTrials]) -> tuple[NotAgain, ...]:
    """The trials to close unlaunched, since their variant failed for good on their host in another block."""
    return tuple(closure for job in jobs if not job.cancelled for closure in _not_again(job.trials))


def _not_again(trials: Sequence[Trial]) -> Iterator[NotAgain]:
    hopeless: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        if trial.newest is not None and trial.newest.failed_for_good:
            hopeless.setdefault((trial.spec.host, trial.spec.variant), trial)
    for trial in trials if hopeless else ():
        cause = hopeless.get((trial.spec.host, trial.spec.variant))
        if cause is not None and cause.newest is not None and not trial.attempts:
            why = cause.newest
            message = f"not launched again: {cause.spec.trial_id} of block {cause.spec.block} failed, {why.message or why.failure_class}"
            yield NotAgain(trial.spec.trial_id, why.kind, why.failure_class, message)


def next_starts(jobs: Iterable[JobTrials], connected: Iterable[str], now_unix_ns: int) -> tuple[Start, ...]:
    """What to begin now: at most one on each connected host that has nothing active. `jobs` are oldest first.

    A second trial would share the host's CPUs and links and so disturb the first one's numbers, even on other GPUs. A server over several
    hosts begins when all are free; until then it keeps those that are, so that no flow of smaller trials holds it up for ever.
    """
    jobs, connected = list(jobs), set(connected)
    free = connected - {host for job in jobs for trial in job.trials if trial.is_active for host in trial.hosts}
    starts = []
    for trial in _waiting(jobs):
        hosts = set(trial.hosts)
        if not free:
            break
        if free.isdisjoint(hosts) or not connected.issuperset(hosts) or pause_left_s(trial, now_unix_ns) > 0:
            continue
        if free.issuperset(hosts):
            starts.append(_start(trial))
        free -= hosts
    return tuple(starts)


def _start(trial: Trial) -> Start:
    members = tuple((node.spec.trial_id, node.spec.host) for node in trial.nodes[1:])
    return Start(trial.spec.trial_id, len(trial.attempts) + 1, trial.spec.host, members)


def pause_left_s(trial: Trial, now_unix_ns: int) -> float:
    """Seconds until the trial may be tried again; 0 for one that has not failed, and when the clocks of its host and ours are apart."""
    newest = trial.newest
    if newest is None or newest.outcome is not Outcome.FAILED:
        return 0.0
    pause_s = rule_for(newest.kind).pause_s
    since_s = (now_unix_ns - newest.ended_unix_ns) / 1e9
    return max(0.0, pause_s - since_s) if since_s >= -pause_s else 0.0


def left_s(trials: Sequence[Trial], planned_s: float) -> float:
    """Wall seconds that a job's trials still need: the median of its finished attempts for each trial left, hosts side by side.

    Before one has finished: `planned_s`, the plan's guess.
    """
    took_s = sorted(
        (attempt.ended_unix_ns - attempt.started_unix_ns) / 1e9
        for trial in trials
        for attempt in trial.attempts
        if attempt.outcome is Outcome.OK and attempt.started_unix_ns
    )
    if not took_s:
        return planned_s
    waiting: dict[str, int] = {}
    for trial in trials:
        if trial.is_active or trial.may_start:
            waiting[trial.spec.host] = waiting.get(trial.spec.host, 0) + 1
    return took_s[len(took_s) // 2] * max(waiting.values(), default=0)


def _waiting(jobs: Sequence[JobTrials]) -> Iterator[Trial]:
    for job in jobs:
        if not job.cancelled:
            yield from (trial for trial in job.trials if trial.may_start)
