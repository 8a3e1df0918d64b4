"""Builds what commands show of a job: its line in a list, its detail and its trials' states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fleet_controller.core.controller_api import JobDetail, JobSummary, TrialStatus
from fleet_controller.core.gang import fold_gangs
from fleet_controller.core.trial_state import Trial, is_over, job_state
from fleet_controller.store.rows import JobRow
from fleet_protos.trial_types import Outcome, Phase


def job_summary(row: JobRow, trials: Iterable[Trial]) -> JobSummary:
    """Return the line of a job for the list of jobs."""
    trials = fold_gangs(trials)
    return summarize_trials(row, trials, sum(is_over(trial, row.cancelled) for trial in trials))


def summarize_trials(row: JobRow, trials: list[Trial], trials_over: int) -> JobSummary:
    """Return the line of a job for the list of jobs. Each gang must be one entry of `trials`;
    `trials_over` is the number of trials that have ended.
    """
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


def job_detail(
    row: JobRow,
    trials: Iterable[Trial],
    trouble: str = "",
    progress: Mapping[str, str] = MappingProxyType({}),
) -> JobDetail:
    """Return a job with all its trials. `progress` says of launching trials how far they are."""
    trials = fold_gangs(trials)
    job = replace(job_summary(row, trials), trouble=trouble)
    return JobDetail(
        job,
        tuple(
            replace(
                trial_status(trial, is_cancelled=row.cancelled),
                progress=progress.get(trial.spec.trial_id, ""),
            )
            for trial in trials
        ),
        row.yaml,
    )


def trial_status(trial: Trial, number: int = 0, *, is_cancelled: bool = False) -> TrialStatus:
    """Return the status of one attempt of a trial. This is the attempt with this number, or the
    newest attempt if no attempt has this number.

    `is_cancelled` says that the job is cancelled, so that a trial without an attempt never begins.
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
