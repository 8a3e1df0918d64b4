"""Compares stored jobs: fetches their runs, finds the baseline and the plan, and prints the
comparison.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_controller.analysis.compare_jobs import MeasuredJob, compare_job_groups, compare_jobs
from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import Comparison, ComparisonConditions
from fleet_controller.analysis.job_differences import job_differences
from fleet_controller.analysis.judged_metrics import judged_metrics
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
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import Outcome

Versions = Mapping[str, str]  # package -> version


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """Holds the user's options for verdicts. None or an empty value means the value of the job."""

    baseline: str = ""
    confidence: float | None = None
    margin: float | None = None
    metrics: tuple[str, ...] = ()


def read_verdict_options(arguments: argparse.Namespace) -> VerdictOptions:
    """Read the options of `compare` and `report`."""
    return VerdictOptions(
        arguments.baseline,
        arguments.confidence,
        arguments.margin,
        tuple(getattr(arguments, "metric", ())),
    )


def compare_stored(arguments: argparse.Namespace) -> Comparison:
    """Compare one job with its baseline, the second of two jobs with the first, or several jobs
    after a change with several before it.
    """
    return asyncio.run(_compare_stored(arguments))


async def _compare_stored(arguments: argparse.Namespace) -> Comparison:
    options = read_verdict_options(arguments)
    if not arguments.b and not arguments.old:
        async with open_controller(arguments) as controller:
            return await compare_job(controller, arguments.a, options)
    if options.baseline:
        raise ConfigError(
            "--baseline has no effect between jobs",
            "each variant of the later jobs is compared with the same variant of the earlier ones",
        )
    old_ids, new_ids = arguments.old or [arguments.a], arguments.new or [arguments.b]
    async with open_controller(arguments) as controller:
        before = [await _fetch_job(controller, job_id, options) for job_id in old_ids]
        after = [await _fetch_job(controller, job_id, options) for job_id in new_ids]
        bridges = await _bridges(controller, before[0], after[0]) if arguments.b else ()
        old, new = before[0], after[-1]
        given = host_variable_differences(
            await host_variables(controller, old.detail, old.job),
            await host_variables(controller, new.detail, new.job),
        )
    confidence, margin = _confidence_and_margin(new.job, options)
    if arguments.b:
        compared = compare_jobs(old.measured, new.measured, confidence, margin, bridges)
    else:
        compared = compare_job_groups(
            [stored.measured for stored in before],
            [stored.measured for stored in after],
            confidence,
            margin,
        )
    read_notes = (note for stored in (*before, *after) for note in stored.notes)
    differences = job_differences(old.job, new.job)
    notes = dict.fromkeys((*compared.notes, *read_notes, *given, *differences))
    return replace(compared, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _ComparedJob:
    """A stored job with its runs. `notes` say how its text was read."""

    job: Job
    detail: JobDetail
    measured: MeasuredJob
    notes: tuple[str, ...]


async def _fetch_job(controller: Controller, job_id: str, options: VerdictOptions) -> _ComparedJob:
    results, detail = await controller.results(job_id), await controller.job(job_id)
    stored = _read_job(results)
    conditions = _planned_conditions(results, stored.job, detail, options)
    return _ComparedJob(stored.job, detail, (conditions, results.runs), tuple(stored.notes))


async def _bridges(controller: Controller, old: _ComparedJob, new: _ComparedJob) -> tuple[str, ...]:
    """Return the variants with equal settings in both jobs whose servers showed equal versions."""
    settings = {variant.name: variant.engine for variant in make_variants(old.job)}
    equal = [
        variant.name
        for variant in make_variants(new.job)
        if settings.get(variant.name) == variant.engine
    ]
    return tuple(
        [
            name
            for name in equal
            if await _versions(controller, old, name) == await _versions(controller, new, name)
        ]
    )


async def _versions(
    controller: Controller, stored: _ComparedJob, variant: str
) -> Mapping[str, str]:
    """Return the versions, as the variant's first server that ended OK showed it."""
    for trial in stored.detail.trials:
        if trial.variant == variant and trial.outcome is Outcome.OK:
            detail = await controller.trial(trial.trial_id, 0, False)
            for event in detail.events:
                if isinstance(event.body, ConfigurationProved):
                    return event.body.versions
    return {}


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
    conditions = _planned_conditions(results, job, detail, options)
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


def _planned_conditions(
    results: JobResults, job: Job, detail: JobDetail, options: VerdictOptions
) -> ComparisonConditions:
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
        by_method_1=not results.resolved,
        judged=dict.fromkeys(workloads, options.metrics)
        if options.metrics
        else judged_metrics(job),
    )


def _conditions(results: JobResults) -> ComparisonConditions:
    return ComparisonConditions(results.job.job_id, results.job.engine, results.job.time_scale)
