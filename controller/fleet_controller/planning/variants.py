"""Makes the variants of a job. A variant is a combination of levels that is not excluded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleet_controller.core.job import Job, Level
from fleet_knowledge.sglang.parallelism import count_needed_gpus
from fleet_protos.trial_types import EngineKind, EngineSpec

MOST_TRIALS = 10_000


DEFAULT_VARIANT = "default"


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of levels and the engine that results from it. `index` counts from 1, in the
    order of the job file.
    """

    index: int
    name: str
    levels: Mapping[str, str]
    engine: EngineSpec
    is_baseline: bool


def make_variants(job: Job) -> tuple[Variant, ...]:
    """Return every combination of levels that is not excluded. The last factor varies fastest.
    Return nothing if the factors make more than MOST_TRIALS combinations.
    """
    if count_combinations(job) > MOST_TRIALS:
        return ()
    kept = [
        levels
        for levels in _level_combinations(job)
        if not any(part.items() <= levels.items() for part in job.exclude)
    ]
    return tuple(_variant(job, index, levels) for index, levels in enumerate(kept, start=1))


def count_combinations(job: Job) -> int:
    """Return how many combinations of levels the factors make before any is excluded."""
    return math.prod(len(levels) for levels in job.factors.values())


def _level_combinations(job: Job) -> Iterator[dict[str, str]]:
    for chosen in itertools.product(*job.factors.values()):
        yield dict(zip(job.factors, chosen, strict=True))


def _variant(job: Job, index: int, levels: Mapping[str, str]) -> Variant:
    return Variant(
        index=index,
        name=",".join(f"{factor}={level}" for factor, level in levels.items()) or DEFAULT_VARIANT,
        levels=levels,
        engine=_resolved_engine(
            job, [job.factors[factor][level] for factor, level in levels.items()]
        ),
        is_baseline=levels == job.baseline,
    )


def _resolved_engine(job: Job, levels: Sequence[Level]) -> EngineSpec:
    """Return the engine with the levels applied in the order of the job file. If two levels change
    the same setting, the later level has precedence.
    """
    args = _overlay(job.engine.args, [level.args for level in levels])
    changes = [level.env for level in levels]
    env = _overlay(job.engine.env, changes)
    removed = {*job.engine.env_removed, *(name for level_env in changes for name in level_env)} - {
        *env
    }
    simulation = job.engine.simulation
    for level in levels:
        simulation = replace(simulation, **level.simulation)
    needed = gpus_per_host(job, args)
    gpus = needed if job.gpus is None and job.engine.kind != EngineKind.EXTERNAL else job.gpus or 0
    return replace(
        job.engine,
        args=args,
        env=env,
        env_removed=tuple(sorted(removed)),
        simulation=simulation,
        gpus=gpus,
    )


def _overlay(base: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the base with the changes applied in order. A value of None removes an entry."""
    merged = dict(base)
    for change in changes:
        merged |= change
    return {name: value for name, value in merged.items() if value is not None}


def gpus_per_host(job: Job, args: Mapping[str, Any]) -> int:
    """Return how many GPUs a server with these arguments needs on each of its hosts."""
    return -(-count_needed_gpus(args) // max(job.engine.gang.nodes, 1))
