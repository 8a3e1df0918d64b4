"""The three kinds of noise of the simulated server, each seeded and switched off on its own."""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random

RUN_KNOT_S = 10.0
DRIFT_TURN_HOURS = 2.0


def launch_factor(seed: int, launch: str, deviation: float) -> float:
    """Return the factor of all step times of one launch.

    It is log-normal with median 1 and relative standard deviation `deviation`.
    """
    return math.exp(deviation * _normal(seed, launch, "launch")) if deviation else 1.0


def run_factor(seed: int, launch: str, deviation: float, at_s: float) -> float:
    """Return the factor of step times at `at_s` seconds of model time after the launch's start.

    It varies slowly, with relative standard deviation `deviation`: a normal value every RUN_KNOT_S,
    blended between with constant variance. So runs of that length differ, and longer runs average
    the noise out.
    """
    if not deviation:
        return 1.0
    knot, place = divmod(at_s / RUN_KNOT_S, 1.0)
    before, after = (_normal(seed, launch, f"run{int(knot) + step}") for step in (0, 1))
    blend = ((1 - place) * before + place * after) / math.hypot(1 - place, place)
    return math.exp(deviation * blend)


def drift_factor(seed: int, per_hour: float, model_hours: float) -> float:
    """Return the drift that all launches of a seed share.

    It is a triangle wave around 1 with slope ±`per_hour` that turns every DRIFT_TURN_HOURS.
    `model_hours` counts from the Unix epoch in model time, so that a launch continues where the one
    before it stopped.
    """
    if not per_hour:
        return 1.0
    phase = Random(f"{seed}:drift").random() * 2 * DRIFT_TURN_HOURS
    place = (model_hours + phase) % (2 * DRIFT_TURN_HOURS)
    return 1.0 + per_hour * (abs(place - DRIFT_TURN_HOURS) - DRIFT_TURN_HOURS / 2)


def draw_accept_lengths(shares: tuple[float, ...], seed: str, size: int = 128) -> tuple[int, ...]:
    """Return `size` accept lengths in random order.

    Their counts follow `shares`, so that their mean is exact to about 1 / size.
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
