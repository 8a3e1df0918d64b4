"""Promises of the warm-up: what is steady, what was dropped, and how often it is wrong, on series
whose truth is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, repeat
from math import inf, nan

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fleet_agent.core.gates import GATES
from fleet_agent.core.steady_state import (
    NOT_STEADY,
    SIGNIFICANCE,
    Steadiness,
    conclude_warm_up,
    judge_steadiness,
    level_of,
    rate_of,
)
from fleet_agent.core.stop_rule import Decision, decide
from fleet_protos.trial_types import Gate, GateEffect, Measure, RunResult, Workload

MEASURE = Measure(runs_min=5, runs_max=20, precision=0.02)
STORY = (81.0, 83.6, 82.8, 92.0, 94.0)
FLAT = (99.1, 100.8, 100.2, 98.9, 101.1, 99.7, 100.4, 100.9, 99.4, 99.9)
CLOSED, OPEN = Workload("w", concurrency=1), Workload("w", rate_per_s=4.0, duration_s=10.0)

rates = st.floats(1.0, 1e5)


def test_the_published_five_runs_are_two_levels_and_not_steady() -> None:
    found = judge_steadiness(STORY, MEASURE)
    assert (found.warm_up, found.is_steady) == (3, False)
    assert found.change is not None
    assert found.change.ratio == pytest.approx(93.0 / 82.4667, rel=1e-4)


def test_the_published_five_runs_ask_for_more_and_then_only_the_second_level_counts() -> None:
    measure = replace(MEASURE, precision=0.1)  # coarse enough that the five alone would have done
    warm_up, gates = conclude_warm_up(STORY, measure)
    assert (decide(STORY, 0, measure), decide(STORY, 0, measure, warm_up), gates) == (
        Decision.ENOUGH,
        Decision.MORE,
        (),
    )
    longer = (*STORY, 93.2, 92.4, 93.6)
    warm_up, gates = conclude_warm_up(longer, measure)
    assert (warm_up, gates, decide(longer, 0, measure, warm_up)) == (3, (), Decision.ENOUGH)


def test_the_published_five_runs_are_flagged_where_no_more_are_allowed_and_all_of_them_count() -> (
    None
):
    measure = replace(MEASURE, runs_max=5)
    warm_up, (gate,) = conclude_warm_up(STORY, measure)
    told = "the launch never became steady in 5 valid runs: its rate or latency still changed by +12.8 % after the first 3 runs; all runs count"
    assert (warm_up, gate) == (0, Gate(NOT_STEADY, GateEffect.FLAG, told))
    assert GATES[NOT_STEADY] is GateEffect.FLAG
    assert decide(STORY, 0, measure, warm_up) is Decision.ENOUGH


def test_noise_around_one_level_is_steady_from_the_first_run() -> None:
    assert judge_steadiness(FLAT, MEASURE) == Steadiness()


@pytest.mark.parametrize("cold", [50.0, 90.0, 110.0])
def test_a_first_run_on_another_level_is_dropped_and_nothing_else(cold: float) -> None:
    found = judge_steadiness((cold, *FLAT), MEASURE)
    assert (found.warm_up, found.is_steady) == (1, True)


def test_a_drift_never_becomes_steady() -> None:
    drifting = [100 * 1.02**run + wobble for run, wobble in enumerate(FLAT * 2)]
    assert not judge_steadiness(drifting, MEASURE).is_steady
    _, (gate,) = conclude_warm_up(drifting, MEASURE)
    assert gate.code == NOT_STEADY


def test_a_warm_up_longer_than_what_follows_it_is_no_warm_up() -> None:
    series = (*(80 + value - 100 for value in FLAT), *FLAT[:7])
    assert not judge_steadiness(series, MEASURE).is_steady
    assert decide(series, 0, MEASURE, judge_steadiness(series, MEASURE).warm_up) is Decision.MORE
    assert judge_steadiness((*series, *FLAT[7:]), MEASURE).is_steady


def test_a_change_too_small_for_the_precision_asked_for_does_not_matter() -> None:
    series = (*repeat(100.0, 5), *repeat(100.9, 5))  # without any noise: half of 2 % is the limit
    assert judge_steadiness(series, MEASURE) == Steadiness()
    assert judge_steadiness(series, replace(MEASURE, precision=0.01)).warm_up == 5


def test_a_job_that_fixes_its_warm_up_is_not_judged() -> None:
    assert conclude_warm_up(STORY, replace(MEASURE, runs_max=5, warmup_requests=8)) == (0, ())


@pytest.mark.parametrize("values", [(), (50.0,), (50.0, 100.0)])
def test_nothing_is_said_of_fewer_than_three_runs(values: Sequence[float]) -> None:
    assert judge_steadiness(values, MEASURE) == Steadiness()


@settings(max_examples=200, deadline=None)
@given(st.lists(rates, max_size=24), st.integers(1, 8), st.floats(0.0, 0.2))
def test_the_warm_up_is_a_part_of_the_series_and_a_state_is_no_shorter(
    values: list[float], runs_min: int, precision: float
) -> None:
    measure = replace(MEASURE, runs_min=runs_min, precision=precision)
    found = judge_steadiness(values, measure)
    left = len(values) - found.warm_up
    assert (found.warm_up == 0) == (found.change is None)
    assert left > 0 or not values
    assert found.is_steady == (found.change is None or left >= max(runs_min, found.warm_up))
    dropped, _ = conclude_warm_up(values, measure)
    assert len(values) < measure.runs_max or dropped <= len(values) / 2


@settings(max_examples=200, deadline=None)
@given(
    st.lists(rates, min_size=3, max_size=24),
    st.sampled_from([2.0**power for power in range(-10, 11)]),
)  # without rounding
def test_the_unit_of_the_rate_changes_nothing(values: list[float], unit: float) -> None:
    ours, theirs = (
        judge_steadiness(values, MEASURE),
        judge_steadiness([value * unit for value in values], MEASURE),
    )
    assert (ours.warm_up, ours.is_steady) == (theirs.warm_up, theirs.is_steady)


@given(rates, st.integers(3, 30))
def test_equal_runs_are_steady(rate: float, count: int) -> None:
    assert judge_steadiness([rate] * count, MEASURE) == Steadiness()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(90.0, 110.0), min_size=3, max_size=14))
def test_the_cut_is_the_one_that_a_t_test_of_each_would_choose(values: list[float]) -> None:
    """By SciPy, cut by cut; the first that is found, since what follows it is judged anew."""
    sides = [(at, values[:at], values[at:]) for at in range(1, len(values))]
    steps = [abs(sum(b) / len(b) - sum(a) / len(a)) for _, a, b in sides]
    limit = 0.01 * sum(values) / len(values)
    assume(all(abs(step - limit) > 1e-9 for step in steps))
    apart = [side for side, step in zip(sides, steps, strict=True) if step > limit]
    tests = [(pooled_p(a, b), at) for at, a, b in apart]
    p, at = min(tests, default=(1.0, 0))
    expected = at if p * (len(values) - 1) < SIGNIFICANCE else 0
    if (
        abs(p * (len(values) - 1) - SIGNIFICANCE) > 1e-6
        and [found for found, _ in sorted(tests)[1:2] if found - p < 1e-9] == []
    ):
        first = judge_steadiness(values[:], replace(MEASURE, runs_min=1))
        assert (first.warm_up > 0) == (expected > 0)
        assert first.warm_up >= expected


def pooled_p(a: Sequence[float], b: Sequence[float]) -> float:
    """A pooled two-sample t-test that also takes a sample of one."""
    left, right = sum(a) / len(a), sum(b) / len(b)
    squares = sum((value - left) ** 2 for value in a) + sum((value - right) ** 2 for value in b)
    df = len(a) + len(b) - 2
    if squares == 0:
        return 0.0
    t = abs(right - left) / (squares / df * (1 / len(a) + 1 / len(b))) ** 0.5
    return float(2 * stats.t.sf(t, df))


# How often it is wrong. The figures stand in docs/statistics.md.


def share(
    series: Callable[[random.Random], Sequence[float]],
    says: Callable[[Steadiness], bool],
    count: int = 1000,
) -> float:
    """Of `count` seeded series, those of which `says` is true."""
    rng = random.Random(7)
    return sum(says(judge_steadiness(series(rng), MEASURE)) for _ in range(count)) / count


def noise(cv: float, runs: int) -> Callable[[random.Random], Sequence[float]]:
    return lambda rng: [rng.gauss(100, 100 * cv) for _ in range(runs)]


def stepping(
    cv: float, before: int, after: int, by: float
) -> Callable[[random.Random], Sequence[float]]:
    return lambda rng: (
        [rng.gauss(100, 100 * cv) / (1 + by) for _ in range(before)]
        + [rng.gauss(100, 100 * cv) for _ in range(after)]
    )


def drifting(cv: float, runs: int, by: float) -> Callable[[random.Random], Sequence[float]]:
    return lambda rng: [100 * (1 + by) ** run * rng.gauss(1, cv) for run in range(runs)]


def walk(runs: int) -> Callable[[random.Random], Sequence[float]]:
    return lambda rng: [100 + moved for moved in accumulate(rng.gauss(0, 2) for _ in range(runs))]


def changed(found: Steadiness) -> bool:
    return found.change is not None


@pytest.mark.parametrize("runs", [3, 5, 8, 12, 20])
def test_a_flat_series_is_called_unsteady_in_at_most_one_of_twenty(runs: int) -> None:
    assert (
        share(noise(0.05, runs), changed, 2000) <= SIGNIFICANCE + 0.015
    )  # three standard errors of such a share


@pytest.mark.parametrize(
    ("cv", "runs", "at_least"),
    [(0.01, 10, 0.99), (0.02, 10, 0.99), (0.03, 12, 0.95), (0.01, 6, 0.95)],
)
def test_a_step_of_ten_percent_half_way_is_seen(cv: float, runs: int, at_least: float) -> None:
    assert share(stepping(cv, runs // 2, runs - runs // 2, 0.1), changed) >= at_least


@pytest.mark.parametrize(("cv", "by", "at_least"), [(0.01, 0.1, 0.95), (0.02, 0.2, 0.9)])
def test_a_cold_first_run_before_nine_others_is_dropped_alone(
    cv: float, by: float, at_least: float
) -> None:
    assert (
        share(stepping(cv, 1, 9, by), lambda found: (found.warm_up, found.is_steady) == (1, True))
        >= at_least
    )


def test_a_drift_of_two_percent_a_run_is_seen_within_ten_runs() -> None:
    assert share(drifting(0.02, 10, 0.02), changed) >= 0.95
    assert share(drifting(0.02, 20, 0.02), lambda found: not found.is_steady) >= 0.95


def test_a_walk_without_a_level_of_its_own_is_seen() -> None:
    assert share(walk(20), changed) >= 0.75


def launch(rng: random.Random, first: float, measure: Measure) -> tuple[int, float]:
    """Runs until the stop rule has enough, of noise of 1 % around 100, the first of them so many
    times that; and their mean.
    """
    values: list[float] = []
    warm_up = 0
    while not values or decide(values, 0, measure, warm_up) is Decision.MORE:
        values.append(rng.gauss(100, 1) * (1 if values else first))
        warm_up, _ = conclude_warm_up(values, measure)
    return len(values), sum(values[warm_up:]) / len(values[warm_up:])


def test_a_cold_first_run_costs_one_run_instead_of_all_that_are_allowed_and_does_not_move_the_mean() -> (
    None
):
    fixed = [
        launch(random.Random(seed), 0.8, replace(MEASURE, warmup_requests=1)) for seed in range(20)
    ]
    auto = [launch(random.Random(seed), 0.8, MEASURE) for seed in range(20)]
    assert {runs for runs, _ in fixed} == {20}
    assert sum(mean for _, mean in fixed) / 20 == pytest.approx(99.0, abs=0.1)
    assert sum(runs for runs, _ in auto) / 20 < 7
    assert sum(mean for _, mean in auto) / 20 == pytest.approx(100.0, abs=0.25)


def test_a_flat_launch_costs_no_more_runs_than_with_a_fixed_warm_up() -> None:
    assert sum(launch(random.Random(seed), 1.0, MEASURE)[0] for seed in range(20)) <= 20 * 5 + 4


# Which runs are looked at.


@pytest.mark.parametrize("rate", [0.0, -1.0, nan, inf])
def test_a_run_without_a_usable_rate_is_no_level(rate: float) -> None:
    assert rate_of(RunResult(metrics={"output_tok_s": rate})) is None
    assert rate_of(RunResult()) is None


def test_a_void_run_is_no_level_and_any_other_is() -> None:
    metrics = {"output_tok_s": 88.8}
    assert rate_of(RunResult(metrics=metrics, gates=(Gate("x", GateEffect.VOID_RUN),))) is None
    assert rate_of(RunResult(metrics=metrics, gates=(Gate("x", GateEffect.FLAG),))) == 88.8


def test_a_given_rate_is_judged_by_latency_since_the_server_does_not_make_it() -> None:
    metrics = {"output_tok_s": 800.0, "e2e_s_p50": 1.5}
    assert (
        level_of(metrics, CLOSED),
        level_of(metrics, OPEN),
        level_of({"output_tok_s": 800.0}, OPEN),
    ) == (800.0, 1.5, 800.0)
