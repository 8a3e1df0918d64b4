"""Estimates how long a plan takes, before anything was measured."""

from __future__ import annotations

import math
from collections import defaultdict

from fleet_controller.core.job import Job
from fleet_controller.planning.job_plan import Plan, PlannedTrial, has_witness
from fleet_protos.search_rules import max_runs
from fleet_protos.trial_types import EngineKind, EngineSpec, Workload
from fleet_protos.workload_rules import at_load, is_open_loop, mean_output_tokens

# Estimates in seconds. A model loads the longer the more GPUs it takes: 300 s on 8 of them. A small
# model on a CPU took 47 s a launch with its runs. A token takes as long as in a single stream on a
# host with 8 GPUs (62.9 tok/s).
_READY_S = {EngineKind.SGLANG: 28.0, EngineKind.SIMULATED: 1.0, EngineKind.EXTERNAL: 0.0}
_READY_S_PER_GPU = 34.0
_STOP_S = {EngineKind.SGLANG: 10.0, EngineKind.SIMULATED: 0.3, EngineKind.EXTERNAL: 0.0}
_TOKEN_S = 1 / 62.9
_CROWDING = 0.02  # each further request in flight makes a step longer by this share


def estimate_seconds(plan: Plan, job: Job) -> float:
    """Return the estimated wall seconds of the whole plan, in which hosts work in parallel. The
    estimate is right within a factor of two or three at best.
    """
    busy_s: defaultdict[str, float] = defaultdict(float)
    for trial in plan.trials:
        busy_s[trial.host] += trial_seconds(trial, job) + _witness_s(plan, job, trial)
    return max(busy_s.values(), default=0.0)


def busy_seconds(plan: Plan, job: Job) -> dict[str, float]:
    """Return for each host the estimated wall seconds for which the plan uses it. Every host of a
    server counts.
    """
    busy_s: defaultdict[str, float] = defaultdict(float)
    for trial in plan.trials:
        for host in (trial.host, *trial.members):
            busy_s[host] += trial_seconds(trial, job) + _witness_s(plan, job, trial)
    return dict(busy_s)


def gpu_hours(plan: Plan, job: Job) -> float:
    """Return the estimated GPU hours of the plan, or 0 for simulated GPUs, which cost nothing."""
    if job.engine.kind == EngineKind.SIMULATED:
        return 0.0
    seconds = (
        (trial, trial_seconds(trial, job) + _witness_s(plan, job, trial)) for trial in plan.trials
    )
    return (
        sum(
            trial.variant.engine.gpus * (1 + len(trial.members)) * taken_s
            for trial, taken_s in seconds
        )
        / 3600
    )


def trial_seconds(trial: PlannedTrial, job: Job) -> float:
    """Return the estimated wall seconds of one launch with all its workloads. Each workload counts
    one warm-up and a number of runs half-way between minimum and maximum.
    """
    engine = trial.variant.engine
    runs = 1 + (job.measure.runs_min + job.measure.runs_max) / 2
    measured_s = sum(
        _search_seconds(workload) if workload.search.of else runs * _run_seconds(workload)
        for workload in job.workloads
    )
    return _ready_s(engine) + measured_s / engine.simulation.time_scale + _STOP_S[engine.kind]


def _witness_s(plan: Plan, job: Job, trial: PlannedTrial) -> float:
    engine = trial.variant.engine
    return _ready_s(engine) + _STOP_S[engine.kind] if has_witness(job, plan, trial) else 0.0


def _ready_s(engine: EngineSpec) -> float:
    if engine.kind == EngineKind.SGLANG:
        return _READY_S[engine.kind] + _READY_S_PER_GPU * engine.gpus
    simulated_s = engine.simulation.ready_after_s if engine.kind == EngineKind.SIMULATED else 0.0
    return _READY_S[engine.kind] + simulated_s


def _search_seconds(workload: Workload) -> float:
    """Assume half of the maximum number of runs, each at the geometric mean of the search's lowest
    and highest load.
    """
    search = workload.search
    return (1 + max_runs(search) / 2) * _run_seconds(
        at_load(workload, math.sqrt(search.least * search.most))
    )


def _run_seconds(workload: Workload) -> float:
    answer_s = mean_output_tokens(workload) * _TOKEN_S
    if is_open_loop(workload):
        return workload.duration_s + answer_s
    waves = -(-workload.requests // workload.concurrency)
    return waves * workload.think_s + waves * answer_s * (
        1 + _CROWDING * (workload.concurrency - 1)
    )
