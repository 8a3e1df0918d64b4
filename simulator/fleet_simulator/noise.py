"""Computes the noise of the simulated server. It has three kinds: one per launch, one within a
launch, and a drift. Each kind has a seed and can be switched off alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random

RUN_KNOT_S = 10.0
DRIFT_TURN_HOURS = 2.0


def launch_factor(seed: int, launch: str, deviation: float) -> float:
    """Return the factor that multiplies the duration of every step of one launch.

    The factor is log-normal with median 1 and relative standard deviation `deviation`.
    """
    return math.exp(deviation * _normal(seed, launch, "launch")) if deviation else 1.0


def run_factor(seed: int, launch: str, deviation: float, at_s: float) -> float:
    """Return the factor that multiplies the duration of a step at `at_s`, in seconds of model time
    after the launch began.

    The factor has the relative standard deviation `deviation` and varies slowly: a normal value is
    drawn for every RUN_KNOT_S seconds, and values between two draws are blended with constant
    variance. So runs of RUN_KNOT_S seconds differ from each other, and longer runs average the
    noise out.
    """
    if not deviation:
        return 1.0
    knot, place = divmod(at_s / RUN_KNOT_S, 1.0)
    before, after = (_normal(seed, launch, f"run{int(knot) + step}") for step in (0, 1))
    blend = ((1 - place) * before + place * after) / math.hypot(1 - place, place)
    return math.exp(deviation * blend)


def drift_factor(seed: int, per_hour: float, model_hours: float) -> float:
    """Return the drift: a factor for the duration of steps that is the same for all launches with
    this seed.

    The drift is a triangle wave around 1. Its slope is ±`per_hour` and turns every
    DRIFT_TURN_HOURS. `model_hours` counts from the Unix epoch in model time, so that a launch
    continues the drift of the launch before it.
    """
    if not per_hour:
        return 1.0
    phase = Random(f"{seed}:drift").random() * 2 * DRIFT_TURN_HOURS
    place = (model_hours + phase) % (2 * DRIFT_TURN_HOURS)
    return 1.0 + per_hour * (abs(place - DRIFT_TURN_HOURS) - DRIFT_TURN_HOURS / 2)


def draw_accept_lengths(shares: tuple[float, ...], seed: str, size: int = 128) -> tuple[int, ...]:
    """Return `size` accept lengths in random order.

    `shares` gives the share of each length. The counts follow the shares, so that the mean is exact
    to about 1 / size.
    """
    quotas = [share * size for share in shares]
    counts = [int(quota) for quota in quotas]
    by_rest = sorted(range(len(quotas)), key=lambda index: counts[index] - quotas[index])
    for index in by_rest[: size - sum(counts)]:
        counts[index] += 1
    deck = [length for length, count in enumerate(counts, start=1) for _ in range(count)]
    Random(seed).shuffle(deck)
    return tuple(deck)


@lru_cache(maxsize=64)
def _normal(seed: int, launch: str, what: str) -> float:
    return Random(f"{seed}:{launch}:{what}").gauss(0.0, 1.0)
