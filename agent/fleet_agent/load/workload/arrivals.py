"""Computes when the requests of an open loop are due. Equal seeds give equal times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from fleet_protos.attachment import Trace
from fleet_protos.trial_types import Stage, Workload
from fleet_protos.workload_rules import requests_due

CONSTANT = "constant"
POISSON = "poisson"
GAMMA = "gamma"
ARRIVALS = (CONSTANT, POISSON, GAMMA)


def send_offsets_s(workload: Workload, seed: int, run_index: int) -> tuple[float, ...]:
    """Return when each request is due, in seconds after the start. The times ascend, and none is
    after the end of the last stage.

    The gaps between requests depend on `arrivals`:

    - constant: even gaps; the first request is due at 0;
    - poisson: exponential gaps (a Poisson process);
    - gamma: gaps from a gamma distribution with the shape `burstiness`; 1 equals poisson, and below
      1 the requests come in bursts.

    Where the rate changes, the gaps are stretched to follow the rate. At least one request is due,
    so that no run is empty. In a search, `run_index` counts the runs at one load. Raises ValueError
    if the workload is not an open loop.
    """
    stages = _stages(workload)
    arrivals = workload.arrivals or CONSTANT
    if arrivals not in ARRIVALS:
        known = ", ".join(ARRIVALS)
        raise ValueError(
            f"workload {workload.name!r}: arrivals {arrivals!r} are unknown: use one of {known}"
        )
    if arrivals == GAMMA and not workload.burstiness > 0:
        raise ValueError(f"workload {workload.name!r}: arrivals: gamma needs a burstiness above 0")
    total = sum(requests_due(stage) for stage in stages)
    if arrivals == CONSTANT:
        return _place_along_stages(stages, range(max(1, round(total))))
    load = f"@{workload.rate_per_s:g}" if workload.search.of else ""
    rng = random.Random(f"{seed}/{workload.name}{load}/{run_index}")
    return _place_along_stages(
        stages, list(_draw_places(rng, 1.0 if arrivals == POISSON else workload.burstiness, total))
    )


def replay_offsets_s(trace: Trace, workload: Workload) -> tuple[float, ...]:
    """Return when each request of a trace is due, in seconds after the start: the recorded times
    divided by the workload's speed.
    """
    count = workload.requests or len(trace.at_ms)
    return tuple(at_ms / 1000 / (workload.speed or 1.0) for at_ms in trace.at_ms[:count])


def _stages(workload: Workload) -> Sequence[Stage]:
    """Return the stages of the workload. A workload with a single rate has one stage. Raises
    ValueError if no request is ever due.
    """
    stages = workload.stages or (
        Stage(workload.rate_per_s, workload.rate_per_s, workload.duration_s),
    )
    sound = all(
        stage.start_per_s >= 0 and stage.end_per_s >= 0 and stage.duration_s > 0 for stage in stages
    )
    if not sound or not sum(requests_due(stage) for stage in stages) > 0:
        raise ValueError(
            f"workload {workload.name!r} is not an open loop: it has no rate with a duration"
        )
    return stages


def _draw_places(rng: random.Random, shape: float, total: float) -> Iterator[float]:
    """Yield ascending numbers up to `total`, on average 1 apart. The first number is at most
    `total`.
    """
    at = rng.gammavariate(shape, 1 / shape)
    yield min(at, total)
    while (at := at + rng.gammavariate(shape, 1 / shape)) < total:
        yield at


def _place_along_stages(stages: Sequence[Stage], places: Sequence[float]) -> tuple[float, ...]:
    """Return the time, in seconds after the start, at which each place is reached. A place is a
    number of requests, and places must ascend.
    """
    offsets: list[float] = []
    remaining = iter(stages)
    stage, stage_start_s, requests_before = next(remaining), 0.0, 0.0
    for place in places:
        while (
            place - requests_before >= requests_due(stage)
            and (following := next(remaining, None)) is not None
        ):
            stage_start_s, requests_before, stage = (
                stage_start_s + stage.duration_s,
                requests_before + requests_due(stage),
                following,
            )
        offsets.append(stage_start_s + _time_in_stage_s(stage, place - requests_before))
    return tuple(offsets)


def _time_in_stage_s(stage: Stage, requests: float) -> float:
    """Return the seconds after the start of a stage at which `requests` requests are due.

    This is the positive root of start·t + slope·t²/2 = requests.
    """
    slope = (stage.end_per_s - stage.start_per_s) / stage.duration_s
    root = math.sqrt(max(0.0, stage.start_per_s**2 + 2 * slope * requests))
    speed = stage.start_per_s + root
    return min(2 * requests / speed, stage.duration_s) if requests > 0 and speed > 0 else 0.0
