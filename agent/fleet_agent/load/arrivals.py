"""Owns when the requests of an open loop are meant to be sent; pure, the seed decides everything."""

from __future__ import annotations

import random

from fleet_protos.trial import Workload

CONSTANT = "constant"
POISSON = "poisson"
ARRIVALS = (CONSTANT, POISSON)


def send_offsets_s(workload: Workload, seed: int, run_index: int) -> tuple[float, ...]:
    """Seconds after the start at which each request is due, ascending, all below the workload's duration.

    constant: every 1/rate seconds from 0 on. poisson: exponential gaps of mean 1/rate (a Poisson process). At least one
    request is due, so that no run is empty. Raises ValueError when the workload is no open loop.
    """
    rate, duration = workload.rate_per_s, workload.duration_s
    if not (rate > 0 and duration > 0):
        raise ValueError(f"workload {workload.name!r} has no rate and duration: it is no open loop")
    if (workload.arrivals or CONSTANT) not in ARRIVALS:
        raise ValueError(f"workload {workload.name!r}: arrivals {workload.arrivals!r} is unknown; one of {', '.join(ARRIVALS)}")
    if workload.arrivals == POISSON:
        return _poisson(rate, duration, random.Random(f"{seed}/{workload.name}/{run_index}"))
    return tuple(number / rate for number in range(max(1, round(rate * duration))))


def _poisson(rate: float, duration: float, rng: random.Random) -> tuple[float, ...]:
    offsets: list[float] = []
    at = rng.expovariate(rate)
    while at < duration or not offsets:
        offsets.append(min(at, duration))
        at += rng.expovariate(rate)
    return tuple(offsets)
