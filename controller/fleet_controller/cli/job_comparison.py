"""Compares stored jobs: fetches their runs, finds the baseline and the plan, and prints the
comparison.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from fleet_controller.analysis.compare_runs import compare, compare_jobs
from fleet_controller.analysis.comparison_values import Comparison, ComparisonConditions
from fleet_controller.analysis.job_differences import job_differences
from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.host_variable_notes import (
    host_variable_differences,
    host_variable_notes,
    host_variables,
)
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import Controller, JobDetail, JobResults, TrialStatus
from fleet_controller.core.job import Job
from fleet_controller.job_file.resolved_job import StoredJob, read_stored_job
from fleet_controller.planning.variants import make_variants
from fleet_controller.report.comparison_export import comparison_json
from fleet_controller.report.terminal_layout import comparison_text
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Outcome


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """Holds the user's options for verdicts. None or an empty string means the value of the job."""

    baseline: str = ""
    confidence: float | None = None
    margin: float | None = None


def read_verdict_options(arguments: argparse.Namespace) -> VerdictOptions:
    """Read the options of `compare` and `report`."""
    return VerdictOptions(arguments.baseline, arguments.confidence, arguments.margin)


def compare_stored(arguments: argparse.Namespace) -> Comparison:
    """Compare the variants of one job with its baseline, or the second of two jobs with the first
    job.
    """
    return asyncio.run(_compare_stored(arguments))


async def _compare_stored(arguments: argparse.Namespace) -> Comparison:
    if arguments.b and arguments.baseline:
        raise ConfigError(
            "--baseline has no effect between two jobs",
            "leave --baseline out: each variant of B is compared with the same variant of A",
        )
    async with open_controller(arguments) as controller:
        if not arguments.b:
            return await compare_job(controller, arguments.a, read_verdict_options(arguments))
        before, after = await controller.results(arguments.a), await controller.results(arguments.b)
        detail = await controller.job(arguments.b)
        old, new = _read_job(before), _read_job(after)
        given = host_variable_differences(
            await host_variables(controller, await controller.job(arguments.a), old.job),
            await host_variables(controller, detail, new.job),
        )
    job = new.job
    confidence, margin = _confidence_and_margin(job, read_verdict_options(arguments))
    conditions = _planned_conditions(after, job, detail)
    compared = compare_jobs(
        (_conditions(before), before.runs), (conditions, after.runs), confidence, margin
    )
    notes = (*compared.notes, *old.notes, *new.notes, *given, *job_differences(old.job, job))
    return replace(compared, notes=notes)


async def compare_job(controller: Controller, job_id: str, options: VerdictOptions) -> Comparison:
    """Compare all variants of a job with its baseline, or with the baseline that the user names."""
    results, detail = await controller.results(job_id), await controller.job(job_id)
    stored = _read_job(results)
    job = stored.job
    given = host_variable_notes(await host_variables(controller, detail, job))
    if not job.hosts.every_host:
        results, detail = _pool_hosts(results, detail)
    baseline = options.baseline or next(
        (variant.name for variant in make_variants(job) if variant.is_baseline), ""
    )
    confidence, margin = _confidence_and_margin(job, options)
    conditions = _planned_conditions(results, job, detail)
    compared = compare(results.runs, baseline, confidence, margin, conditions)
    return replace(compared, notes=(*compared.notes, *stored.notes, *given))


def print_comparison(comparison: Comparison, as_json: bool, console: Console) -> None:
    """Print the verdict table, or the JSON of the `compare` contract in docs/json.md."""
    if as_json:
        console.print_json(comparison_json(comparison))
    else:
        console.print_text(comparison_text(comparison, console.width, console.colour))


def _pool_hosts(results: JobResults, detail: JobDetail) -> tuple[JobResults, JobDetail]:
    """Give all runs of an `any_host` job the same host name: that of the only host, or an empty
    name.

    All launches of a block run on one host and are compared within the block, so blocks of
    different hosts can be pooled.
    """
    hosts = {trial.host for trial in detail.trials if trial.host}
    host = hosts.pop() if len(hosts) == 1 else ""
    runs = tuple(replace(stored, host=host) for stored in results.runs)
    return replace(results, runs=runs), replace(
        detail, trials=tuple(replace(trial, host=host) for trial in detail.trials)
    )


def _planned_pairs(job: Job, detail: JobDetail) -> tuple[tuple[str, str], ...]:
    """Return the (variant, host) pair of every trial, sorted by host and then in the order of the
    job file.
    """
    trials = {(trial.variant, trial.host) for trial in detail.trials}
    hosts = sorted({host for _, host in trials})
    return tuple(
        (variant.name, host)
        for host in hosts
        for variant in make_variants(job)
        if (variant.name, host) in trials
    )


def _failures(detail: JobDetail) -> dict[tuple[str, str], str]:
    """Return why the trials failed, for each (variant, host) whose trials all failed."""
    ends: dict[tuple[str, str], list[TrialStatus]] = {}
    for trial in detail.trials:
        ends.setdefault((trial.variant, trial.host), []).append(trial)
    return {
        pair: _failure_counts(trials)
        for pair, trials in ends.items()
        if all(trial.outcome is Outcome.FAILED for trial in trials)
    }


def _failure_counts(trials: list[TrialStatus]) -> str:
    counts = Counter(trial.failure_class or trial.kind.name.lower() for trial in trials)
    return ", ".join(f"{failure_class} ×{count}" for failure_class, count in counts.most_common())


def _read_job(results: JobResults) -> StoredJob:
    return read_stored_job(results.job.job_id, results.resolved, results.yaml)


def _confidence_and_margin(job: Job, options: VerdictOptions) -> tuple[float, float]:
    confidence = job.measure.confidence if options.confidence is None else options.confidence
    return confidence, job.margin if options.margin is None else options.margin


def _planned_conditions(results: JobResults, job: Job, detail: JobDetail) -> ComparisonConditions:
    workloads = tuple(workload.name for workload in job.workloads)
    searches = {
        workload.name: workload.search.of for workload in job.workloads if workload.search.of
    }
    planned = _planned_pairs(job, detail)
    return replace(
        _conditions(results),
        planned=planned,
        workloads=workloads,
        failures=_failures(detail),
        searches=searches,
    )


def _conditions(results: JobResults) -> ComparisonConditions:
    return ComparisonConditions(results.job.job_id, results.job.engine, results.job.time_scale)
