"""Promises of the arithmetic behind every verdict."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.analysis.ratio_estimates import (
    pair_estimate,
    welch_estimate,
)
from fleet_controller.analysis.statistics import (
    first_count,
    launches_for_precision,
    mean,
    mean_interval,
    standard_deviation,
    t_quantile,
)

EAGLE3_TUNED = (81.0, 83.6, 82.8, 92.0, 94.0)  # tok/s, five launches of one stream

positive = st.floats(1e-3, 1e4)
samples = st.lists(positive, min_size=2, max_size=12)


def test_published_launches_give_their_published_interval() -> None:
    interval = mean_interval(EAGLE3_TUNED, 0.95)
    assert interval is not None
    assert (round(mean(EAGLE3_TUNED), 1), round(standard_deviation(EAGLE3_TUNED), 1)) == (86.7, 5.9)
    assert (round(interval.low, 1), round(interval.high, 1)) == (79.4, 94.0)


def test_two_percent_on_one_mean_needs_about_45_launches_at_the_published_noise() -> None:
    total = launches_for_precision(EAGLE3_TUNED, 0.02, 0.95)
    assert total is not None
    assert 43 <= total <= 48


def test_one_launch_has_no_interval() -> None:
    assert mean_interval((88.8,), 0.95) is None
    assert pair_estimate([(88.8, 62.9)]) is None
    assert welch_estimate(EAGLE3_TUNED, (88.8,)) is None


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [(0.95, 2, 4.3027), (0.95, 4, 2.7764), (0.90, 10, 1.8125), (0.99, 1, 63.6567)],
)
def test_t_quantiles_are_those_of_the_tables(
    confidence: float, degrees: float, expected: float
) -> None:
    assert t_quantile(confidence, degrees) == pytest.approx(expected, abs=5e-5)


def test_paired_ratio_is_a_t_interval_over_log_differences() -> None:
    estimate = pair_estimate([(2.0, 1.0), (8.0, 2.0), (4.0, 0.5)])
    assert estimate is not None
    assert math.exp(estimate.difference) == pytest.approx(4.0)
    assert estimate.half_width(0.95) == pytest.approx(4.302653 * 0.6931472 / 3**0.5, rel=1e-6)


def test_welch_has_the_degrees_of_satterthwaite() -> None:
    # Logs 0, 1, 2 (variance 1, n 3) against 0, 2, 4, 6 (variance 20/3, n 4): df = 2.0^2 /
    # ((1/3)^2/2 + (5/3)^2/3) = 4.0755.
    exponentials = [2.718281828459045**power for power in range(7)]
    estimate = welch_estimate(exponentials[:3], exponentials[::2])
    assert estimate is not None
    assert estimate.difference == pytest.approx(-2.0)
    assert estimate.half_width(0.95) == pytest.approx(
        t_quantile(0.95, 4 / (1 / 18 + 25 / 27)) * 2**0.5
    )


@pytest.mark.parametrize("paired", [True, False])
def test_ratio_interval_covers_the_truth_as_often_as_it_says(paired: bool) -> None:
    rng, covered, rounds, truth = random.Random(20), 0, 2000, 1.1
    for _ in range(rounds):
        drift = [rng.gauss(0, 0.03) for _ in range(5)]
        values = [truth * 80 * 2.718281828459045 ** (shift + rng.gauss(0, 0.02)) for shift in drift]
        others = [
            80
            * 2.718281828459045 ** ((shift if paired else rng.gauss(0, 0.03)) + rng.gauss(0, 0.02))
            for shift in drift
        ]
        estimate = (
            pair_estimate(list(zip(values, others, strict=True)))
            if paired
            else welch_estimate(values, others)
        )
        assert estimate is not None
        covered += abs(estimate.difference - math.log(truth)) <= estimate.half_width(0.95)
    assert covered / rounds == pytest.approx(
        0.95, abs=0.015
    )  # 3 standard errors of a share of 2000


def test_mean_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, covered, rounds = random.Random(7), 0, 2000
    for _ in range(rounds):
        interval = mean_interval([rng.gauss(86.7, 5.9) for _ in range(3)], 0.9)
        assert interval is not None
        covered += interval.low <= 86.7 <= interval.high
    assert covered / rounds == pytest.approx(0.9, abs=0.02)


@given(samples, samples, st.floats(0.01, 100))
def test_ratio_does_not_depend_on_the_unit(
    values: list[float], others: list[float], scale: float
) -> None:
    plain = welch_estimate(values, others)
    scaled = welch_estimate(
        [value * scale for value in values], [other * scale for other in others]
    )
    assert plain is not None
    assert scaled is not None
    assert scaled.difference == pytest.approx(plain.difference, abs=1e-9)
    assert scaled.half_width(0.95) == pytest.approx(plain.half_width(0.95), rel=1e-6, abs=1e-9)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=12))
def test_swapping_the_sides_inverts_a_paired_ratio(pairs: list[tuple[float, float]]) -> None:
    forward, backward = (
        pair_estimate(pairs),
        pair_estimate([(other, value) for value, other in pairs]),
    )
    assert forward is not None
    assert backward is not None
    assert backward.difference == pytest.approx(-forward.difference, abs=1e-9)
    assert backward.half_width(0.95) == pytest.approx(forward.half_width(0.95), rel=1e-9, abs=1e-12)


@given(samples, samples)
def test_swapping_the_sides_inverts_an_unpaired_ratio(
    values: list[float], others: list[float]
) -> None:
    forward, backward = welch_estimate(values, others), welch_estimate(others, values)
    assert forward is not None
    assert backward is not None
    assert backward.difference == pytest.approx(-forward.difference, abs=1e-9)
    assert backward.half_width(0.95) == pytest.approx(forward.half_width(0.95), rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(st.integers(2, 20), st.floats(0.001, 0.5), st.floats(0.002, 0.2))
def test_launches_needed_are_the_fewest_that_do(count: int, noise: float, target: float) -> None:
    def half_width(more: int) -> float:
        return t_quantile(0.95, count + more - 1) * noise / (count + more) ** 0.5

    more = first_count(lambda launches: half_width(launches) <= target, 1, 1000)
    if more is None:
        assert half_width(1000) > target
    else:
        assert half_width(more) <= target
        assert more == 1 or half_width(more - 1) > target


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_means_of_the_largest_and_smallest_floats_do_not_overflow(scale: float) -> None:
    values = [scale * value for value in (1.0, 1.5, 1.7)]
    assert mean(values) == pytest.approx(1.4 * scale)
    interval = mean_interval(values, 0.95)
    assert interval is not None
    assert 0 < interval.low < mean(values) < interval.high


def test_the_interval_of_positive_values_is_cut_at_zero() -> None:
    interval = mean_interval([10.0, 90.0], 0.95)
    assert interval is not None
    assert interval.low == 0.0
