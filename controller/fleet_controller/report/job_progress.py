"""Describes the progress of a job: what changed since the last update, and the lines of a live
display.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fleet_controller.analysis.slo_limits import load_text
from fleet_controller.core.controller_api import JobChange, JobSummary, TrialStatus, is_job_over
from fleet_controller.report.comparison_output import duration_text
from fleet_protos.metric_names import GOODPUT_RATIO, OUTPUT_TOK_S
from fleet_protos.trial_types import GateEffect, Outcome, Phase, RunResult, is_void

_BAR_CELLS = 24
_FIRST_WARM_UP = "the first warm-up on this host also starts Ray, which takes about ten seconds"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The last known state of a job.

    `left_s` is the estimated remaining time in wall seconds, or 0 if unknown. `last` is the run
    that finished last.
    """

    job: JobSummary = field(default_factory=JobSummary)
    trials: Mapping[str, TrialStatus] = field(default_factory=dict)
    left_s: float = 0.0
    last: RunResult | None = None


def finished_since(before: JobProgress, change: JobChange) -> list[TrialStatus]:
    """Return the trials of `change` with a finished run that `before` does not have.

    In the first update of a job, trials that are over do not count.
    """
    is_first = not before.job.job_id
    return [
        trial
        for trial in change.trials
        if trial.runs > _runs_before(before, trial) and not (is_first and trial.phase == Phase.OVER)
    ]


def advance_progress(
    before: JobProgress, change: JobChange, finished: Mapping[str, RunResult]
) -> tuple[JobProgress, list[str]]:
    """Return the new progress, and a line for each phase entered and each run finished.

    `finished` maps a trial id to its newest run. In the first update of a job, trials that are over
    get no line.
    """
    trials = dict(before.trials)
    is_news = change.job.trouble != before.job.trouble and not is_job_over(change.job)
    lines = [f"{change.job.job_id}: {change.job.trouble or 'continues'}"] if is_news else []
    for trial in change.trials:
        if before.job.job_id or trial.phase != Phase.OVER:
            lines += _change_lines(before, trial, finished.get(trial.trial_id), change.job)
        trials[trial.trial_id] = trial
    newest = max(finished.values(), key=lambda run: run.started_unix_ns, default=before.last)
    return JobProgress(change.job, trials, change.left_s, newest), lines


def _runs_before(seen: JobProgress, now: TrialStatus) -> int:
    before = seen.trials.get(now.trial_id)
    return before.runs if before and before.attempt == now.attempt else 0


def _change_lines(
    seen: JobProgress, now: TrialStatus, run: RunResult | None, job: JobSummary
) -> Iterable[str]:
    before = seen.trials.get(now.trial_id)
    name = f"{now.trial_id} ({now.variant}{f', attempt {now.attempt}' if now.attempt > 1 else ''})"
    if now.runs > _runs_before(seen, now):
        yield f"{name}: run {now.runs} finished{f', {run_text(run, job)}' if run else ''}"
    is_new = before is None or before.attempt != now.attempt
    if now.phase == Phase.OVER and (is_new or before is None or before.phase != Phase.OVER):
        yield f"{name}: {trial_outcome_text(now)}"
    elif now.phase > Phase.QUEUED and (
        is_new or before is None or (before.phase, before.progress) != (now.phase, now.progress)
    ):
        yield f"{name}: {_phase_text(now, seen.trials.values())}"


def run_text(run: RunResult, job: JobSummary) -> str:
    """Format a run: `single 88.8 tok/s (simulated ×100)`.

    For a voided run, the text has the codes of its gates instead of a number. For a run of a
    search, the text has the load and says whether the run met the SLO. If earlier runs count as
    warm-up because of this run, the text says how many.
    """
    load = f" at {load_text(run.searched.load, run.searched.of)}" if run.searched.load else ""
    if is_void(run):
        codes = ", ".join(gate.code for gate in run.gates if gate.effect >= GateEffect.VOID_RUN)
        return f"{run.workload}{load} voided by {codes}{_search_result_text(run)}"
    if load:
        answer = "met" if run.searched.met else "not met"
        percent = run.metrics.get(GOODPUT_RATIO, 0.0) * 100
        return (
            f"{run.workload}{load}: {answer}, goodput {percent:.1f} %"
            f"{engine_mark(job)}{_search_result_text(run)}"
        )
    warm_up = {0: "", 1: ", the first run was warm-up"}.get(
        run.warm_up_runs, f", the first {run.warm_up_runs} runs were warm-up"
    )
    return (
        f"{run.workload} {run.metrics.get(OUTPUT_TOK_S, 0.0):.1f} tok/s{engine_mark(job)}{warm_up}"
    )


def _search_result_text(run: RunResult) -> str:
    """Return what a search found, or an empty text while it continues."""
    searched = run.searched
    if not searched.ended:
        return ""
    return (
        f"; highest met {load_text(searched.highest_met, searched.of)},"
        f" lowest not met {load_text(searched.lowest_not_met, searched.of)}"
    )


def trial_outcome_text(trial: TrialStatus) -> str:
    """Format how a trial ended: `ok`, `cancelled` or `failed (class): message`."""
    if trial.outcome != Outcome.FAILED:
        return trial.outcome.name.lower()
    named = trial.failure_class or trial.kind.name.lower()
    return f"failed ({named})" + (f": {trial.message}" if trial.message else "")


def progress_lines(progress: JobProgress, since_s: float = 0.0) -> list[str]:
    """Return the lines of the live display, `since_s` seconds after the last change.

    They show counts and time left, each running trial, and the last run.
    """
    job = progress.job
    if not job.job_id:
        return ["starting the local agent"]
    full = round(_BAR_CELLS * job.trials_over / job.trials) if job.trials else 0
    bar = "█" * full + "·" * (_BAR_CELLS - full)
    head = f"{job.name} [{bar}] {job.trials_over}/{job.trials} trials"
    left_s = progress.left_s - since_s
    if left_s > 0 and not is_job_over(job):
        head += f" · about {duration_text(left_s / 60)} left"
    if job.trouble:
        head += f" · {job.trouble}"
    trials = progress.trials.values()
    running = [
        _running_line(trial, trials) for trial in trials if Phase.QUEUED < trial.phase < Phase.OVER
    ]
    return [
        head,
        *running,
        *([f"  last run: {run_text(progress.last, job)}"] if progress.last else []),
    ]


def engine_mark(job: JobSummary) -> str:
    """Return ` (simulated ×N)`, or an empty text for a real engine."""
    return f" (simulated ×{job.time_scale:g})" if job.engine == "simulated" else ""


def _running_line(trial: TrialStatus, trials: Collection[TrialStatus]) -> str:
    runs = f", {trial.runs} run{'' if trial.runs == 1 else 's'}" if trial.runs else ""
    attempt = f", attempt {trial.attempt}" if trial.attempt > 1 else ""
    return (
        f"  {trial.host or '-'}  {_phase_text(trial, trials):<10}  {trial.variant}"
        f"  block {trial.block}{attempt}{runs}"
    )


def _phase_text(trial: TrialStatus, trials: Collection[TrialStatus]) -> str:
    """Format a phase with its detail: `measuring`, or `launching: load_weight 61/163`.

    For the first warm-up on a host, before any run of `trials` there, the text explains why it
    takes longer.
    """
    detail = trial.progress
    if trial.phase == Phase.WARMING and not any(
        other.runs for other in trials if other.host == trial.host
    ):
        detail = detail or _FIRST_WARM_UP
    return trial.phase.name.lower() + (f": {detail}" if detail else "")
