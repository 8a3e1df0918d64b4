"""Owns the promises of the stop rule and of the t quantile it rests on, compared with SciPy, which
no agent has.
"""

from __future__ import annotations

from math import inf, tan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from fleet_agent.core.stop_rule import (
    Decision,
    decide,
    regularised_beta,
    relative_half_width,
    t_quantile,
)
from fleet_protos.trial_types import Measure

FIVE_TO_TWENTY = Measure(runs_min=5, runs_max=20, precision=0.02, confidence=0.95)
KIMI = (81.0, 83.6, 82.8, 92.0, 94.0)
STEADY = (100.0, 100.1, 99.9, 100.0, 100.05)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 7, 9, 14, 19, 29, 99, 1000, 1e5, 2.5, 0.7])
@pytest.mark.parametrize(
    "p", [0.001, 0.3, 0.51, 0.6, 0.74, 0.76, 0.9, 0.95, 0.975, 0.995, 0.9999, 0.999999]
)
def test_t_quantile_agrees_with_scipy_to_nine_digits(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.52, 0.9999), st.floats(1.5, 400.0))
def test_t_quantile_inverts_the_distribution_function(p: float, df: float) -> None:
    assert stats.t.cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 1.0), st.floats(0.5, 200.0), st.floats(0.5, 200.0))
def test_incomplete_beta_agrees_with_scipy(x: float, a: float, b: float) -> None:
    assert regularised_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-13)


def test_the_median_is_zero_and_the_sides_mirror() -> None:
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.025, 7) == pytest.approx(-t_quantile(0.975, 7))
    assert t_quantile(0.75, 1) == pytest.approx(tan(3.141592653589793 / 4))


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (1.5, 3), (float("nan"), 3)])
def test_nonsense_is_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="t_quantile needs"):
        t_quantile(p, df)


def test_the_published_five_runs_were_never_precise() -> None:
    """Kimi-K2.5 with EAGLE-3: 86.7 tok/s, 95 % interval 79.4 to 94.0, so 8.4 % on either side."""
    assert relative_half_width(KIMI, 0.95) == pytest.approx((94.0 - 79.4) / 2 / 86.68, rel=5e-3)
    assert decide(KIMI, 0, FIVE_TO_TWENTY) is Decision.MORE


def test_fewer_than_the_least_runs_are_never_enough() -> None:
    assert decide((100.0,) * 4, 0, FIVE_TO_TWENTY) is Decision.MORE


def test_steady_runs_end_at_the_least_runs() -> None:
    assert decide((100.0, 100.1, 99.9, 100.0, 100.05), 0, FIVE_TO_TWENTY) is Decision.ENOUGH


def test_noisy_runs_end_at_the_most_runs() -> None:
    noisy = (50.0, 150.0) * 10
    assert decide(noisy[:19], 0, FIVE_TO_TWENTY) is Decision.MORE
    assert decide(noisy, 0, FIVE_TO_TWENTY) is Decision.ENOUGH


def test_the_precision_asked_for_decides() -> None:
    half = relative_half_width(KIMI, 0.95)
    assert decide(KIMI, 0, Measure(runs_min=5, precision=half * 1.001)) is Decision.ENOUGH
    assert decide(KIMI, 0, Measure(runs_min=5, precision=half * 0.999)) is Decision.MORE


@pytest.mark.parametrize(
    ("void_in_row", "expected"), [(1, Decision.MORE), (2, Decision.MORE), (3, Decision.GIVE_UP)]
)
def test_three_void_runs_in_a_row_give_up(void_in_row: int, expected: Decision) -> None:
    assert decide(KIMI, void_in_row, FIVE_TO_TWENTY) is expected


def test_what_was_warm_up_is_part_of_no_precision_and_of_no_count_but_that_of_the_most() -> None:
    series = (50.0, *STEADY)
    assert decide(series, 0, FIVE_TO_TWENTY) is Decision.MORE
    assert decide(series, 0, FIVE_TO_TWENTY, warm_up=1) is Decision.ENOUGH
    assert decide(series[:5], 0, FIVE_TO_TWENTY, warm_up=1) is Decision.MORE  # four are left
    assert decide((50.0, *STEADY * 4)[:20], 0, FIVE_TO_TWENTY, warm_up=12) is Decision.ENOUGH


def test_a_state_is_as_long_as_the_warm_up_before_it() -> None:
    series = (*(50.0,) * 7, *STEADY)
    assert decide(series, 0, FIVE_TO_TWENTY, warm_up=7) is Decision.MORE
    assert decide((*series, 100.0, 100.0), 0, FIVE_TO_TWENTY, warm_up=7) is Decision.ENOUGH


def test_one_run_shows_no_precision() -> None:
    assert relative_half_width((100.0,), 0.95) == inf
    assert relative_half_width((), 0.95) == inf
    assert decide((100.0,), 0, Measure(runs_min=1, runs_max=3)) is Decision.MORE
    assert decide((100.0,), 0, Measure(runs_min=1, runs_max=1)) is Decision.ENOUGH
