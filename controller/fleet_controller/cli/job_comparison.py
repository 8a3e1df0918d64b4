"""Owns the way from stored jobs to a comparison: which baseline, what was planned, on which engine. Computes nothing."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from fleet_controller.analysis.compare_runs import Comparison, Conditions, compare, compare_jobs
from fleet_controller.analysis.job_differences import differences
from fleet_controller.cli.controller_connection import connected
from fleet_controller.core.controller_api import Controller, JobDetail, Results, TrialStatus
from fleet_controller.core.job import Job
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.job_plan import make_variants
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Outcome


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for; None and empty: as the job says."""

    baseline: str = ""
    confidence: float | None = None
    margin: float | None = None


def asked(arguments: argparse.Namespace) -> Asked:
    """The options of `compare` and `report`."""
    return Asked(arguments.baseline, arguments.confidence, arguments.margin)


def compare_stored(arguments: argparse.Namespace) -> Comparison:
    """One job against its baseline, or the second of two jobs against the first."""
    return asyncio.run(_compared(arguments))


async def _compared(arguments: argparse.Namespace) -> Comparison:
    if arguments.b and arguments.baseline:
        raise ConfigError("--baseline has no meaning between two jobs", "each variant of B is compared with the same variant of A")
    async with connected(arguments) as controller:
        if not arguments.b:
            return await compare_job(controller, arguments.a, asked(arguments))
        before, after = await controller.results(arguments.a), await controller.results(arguments.b)
        detail = await controller.job(arguments.b)
    job = _job_of(after)
    confidence, margin = _question(job, asked(arguments))
    conditions = _planned_conditions(after, job, detail)
    compared = compare_jobs((_conditions(before), before.runs), (conditions, after.runs), confidence, margin)
    return replace(compared, notes=(*compared.notes, *differences(_job_of(before), job)))


async def compare_job(controller: Controller, job_id: str, wanted: Asked) -> Comparison:
    """All variants of a job against its baseline, or against the one that the user names."""
    results, detail = await controller.results(job_id), await controller.job(job_id)
    job = _job_of(results)
    if not job.hosts.every_host:
        results, detail = _pooled(results, detail)
    baseline = wanted.baseline or next(variant.name for variant in make_variants(job) if variant.is_baseline)
    confidence, margin = _question(job, wanted)
    conditions = _planned_conditions(results, job, detail)
    return compare(results.runs, baseline, confidence, margin, conditions)


def _pooled(results: Results, detail: JobDetail) -> tuple[Results, JobDetail]:
    """The blocks of `any_host` together: each was done whole on one host, and is paired in itself. Host: the only one, else empty."""
    hosts = {trial.host for trial in detail.trials if trial.host}
    host = hosts.pop() if len(hosts) == 1 else ""
    runs = tuple(replace(stored, host=host) for stored in results.runs)
    return replace(results, runs=runs), replace(detail, trials=tuple(replace(trial, host=host) for trial in detail.trials))


def _planned(job: Job, detail: JobDetail) -> tuple[tuple[str, str], ...]:
    """(variant, host) of every trial, in the order of the job file."""
    trials = {(trial.variant, trial.host) for trial in detail.trials}
    hosts = sorted({host for _, host in trials})
    return tuple((variant.name, host) for host in hosts for variant in make_variants(job) if (variant.name, host) in trials)


def _failures(detail: JobDetail) -> dict[tuple[str, str], str]:
    """Why each (variant, host) whose trials all failed did so; one that may still start is not among them."""
    ends: dict[tuple[str, str], list[TrialStatus]] = {}
    for trial in detail.trials:
        ends.setdefault((trial.variant, trial.host), []).append(trial)
    return {pair: _classes(trials) for pair, trials in ends.items() if all(trial.outcome is Outcome.FAILED for trial in trials)}


def _classes(trials: list[TrialStatus]) -> str:
    counts = Counter(trial.failure_class or trial.kind.name.lower() for trial in trials)
    return ", ".join(f"{failure_class} ×{count}" for failure_class, count in counts.most_common())


def _job_of(results: Results) -> Job:
    return load_job(results.yaml, f"{results.job.job_id}.yaml").job


def _question(job: Job, wanted: Asked) -> tuple[float, float]:
    confidence = job.measure.confidence if wanted.confidence is None else wanted.confidence
    return confidence, job.margin if wanted.margin is None else wanted.margin


def _planned_conditions(results: Results, job: Job, detail: JobDetail) -> Conditions:
    workloads = tuple(workload.name for workload in job.workloads)
    searches = {workload.name: workload.search.of for workload in job.workloads if workload.search.of}
    planned = _planned(job, detail)
    return replace(_conditions(results), planned=planned, workloads=workloads, failures=_failures(detail), searches=searches)


def _conditions(results: Results) -> Conditions:
    return Conditions(results.job.job_id, results.job.engine, results.job.time_scale)
