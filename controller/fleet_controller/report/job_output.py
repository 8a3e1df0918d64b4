"""Formats jobs and trials as tables and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fleet_controller.analysis.launches import without_warm_up
from fleet_controller.core.controller_api import JobDetail, JobSummary, StoredRun, TrialStatus
from fleet_controller.report.job_progress import engine_mark
from fleet_controller.report.search_output import searches_json
from fleet_controller.report.table import Table
from fleet_protos.trial_types import GateEffect, Outcome, Phase, is_void

JSON_VERSION = 1


def jobs_table(jobs: Sequence[JobSummary]) -> Table:
    """Return one row for each job."""
    rows = tuple(
        (
            job.job_id,
            job.state,
            f"{job.trials_over}/{job.trials}",
            engine_mark(job).strip(" ()") or job.engine,
            str(job.priority) if job.priority else "",
            _when(job),
            job.trouble,
        )
        for job in jobs
    )
    columns = ("job", "state", "trials", "engine", "priority", "submitted (UTC)", "trouble")
    return Table(columns, rows, frozenset({"trials", "priority"})).without_empty(
        "priority", "trouble"
    )


def jobs_json(jobs: Sequence[JobSummary]) -> dict[str, Any]:
    """Return the JSON of the `ls` contract in docs/json.md."""
    return {"version": JSON_VERSION, "jobs": [job_json(job) for job in jobs]}


def job_json(job: JobSummary) -> dict[str, Any]:
    """Return the JSON of one job in the `ls` contract."""
    return {
        "id": job.job_id,
        "name": job.name,
        "state": job.state,
        "trials": job.trials,
        "trials_over": job.trials_over,
        "engine": job.engine,
        "time_scale": job.time_scale,
        "submitted_unix_ns": job.submitted_unix_ns,
        "priority": job.priority,
        "trouble": job.trouble,
    }


def job_heading(job: JobSummary) -> str:
    """Return one line about a job."""
    engine = engine_mark(job).strip(" ()") or job.engine
    priority = f" · priority {job.priority}" if job.priority else ""
    trouble = f" · {job.trouble}" if job.trouble else ""
    return (
        f"job {job.job_id} · {job.state} · {job.trials_over} of {job.trials} trials ended"
        f" · {engine}{priority}{trouble}"
    )


def trials_table(trials: Sequence[TrialStatus]) -> Table:
    """Return one row for each trial."""
    rows = tuple(
        (
            trial.trial_id,
            trial.variant,
            "+".join(trial.nodes) or trial.host,
            str(trial.block),
            str(trial.attempt),
            _phase(trial),
            _outcome(trial) or "",
            str(trial.runs),
            trial.failure_class,
            trial.message or trial.progress,
        )
        for trial in trials
    )
    columns = (
        "trial",
        "variant",
        "host",
        "block",
        "attempt",
        "phase",
        "outcome",
        "runs",
        "failure",
        "message",
    )
    return Table(columns, rows, frozenset({"block", "attempt", "runs"})).without_empty(
        "host", "outcome", "failure", "message"
    )


def kept_out_table(runs: Sequence[StoredRun]) -> Table:
    """Return the runs that are stored but not used in any number, because they are voided or
    warm-up.

    The table has one row for each launch, workload and gate.
    """
    found: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for stored in without_warm_up(runs):
        for code in _voiding_gates(stored):
            found[stored.trial_id, str(stored.attempt), stored.run.workload, code].append(
                str(stored.run.index)
            )
    rows = tuple(
        (trial, attempt, workload, ", ".join(indices), code)
        for (trial, attempt, workload, code), indices in found.items()
    )
    return Table(("trial", "attempt", "workload", "kept out", "by"), rows, frozenset({"attempt"}))


def _voiding_gates(stored: StoredRun) -> list[str]:
    return [gate.code for gate in stored.run.gates if gate.effect >= GateEffect.VOID_RUN]


def show_json(detail: JobDetail, runs: Sequence[StoredRun] = ()) -> dict[str, Any]:
    """Return the JSON of the `show` contract in docs/json.md."""
    return {
        "version": JSON_VERSION,
        "job": detail.job.job_id,
        "state": detail.job.state,
        "engine": detail.job.engine,
        "time_scale": detail.job.time_scale,
        "priority": detail.job.priority,
        "trouble": detail.job.trouble,
        "trials": [trial_json(trial) for trial in detail.trials],
        "kept_out": [
            {
                "trial": run.trial_id,
                "attempt": run.attempt,
                "workload": run.run.workload,
                "run": run.run.index,
                "gates": _voiding_gates(run),
            }
            for run in without_warm_up(runs)
            if is_void(run.run)
        ],
        "searches": searches_json(runs),
    }


def trial_json(trial: TrialStatus) -> dict[str, Any]:
    """Return the JSON of one trial in the `show` contract."""
    return {
        "id": trial.trial_id,
        "variant": trial.variant,
        "host": trial.host,
        "block": trial.block,
        "attempt": trial.attempt,
        "phase": _phase(trial),
        "outcome": _outcome(trial),
        "failure_class": trial.failure_class,
        "message": trial.message,
        "progress": trial.progress,
        "nodes": list(trial.nodes),
    }


def _phase(trial: TrialStatus) -> str:
    return (trial.phase or Phase.QUEUED).name.lower()  # unspecified means no attempt yet


def _outcome(trial: TrialStatus) -> str | None:
    return None if trial.outcome == Outcome.UNSPECIFIED else trial.outcome.name.lower()


def _when(job: JobSummary) -> str:
    return f"{datetime.fromtimestamp(job.submitted_unix_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
