"""Promises of arrivals: the seed decides all, the rate is kept however it changes, and bursts are
as bursty as asked.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.workload.arrivals import send_offsets_s
from fleet_protos.trial_types import Stage, Workload
from fleet_protos.workload_rules import requests_due

RATE = Workload(
    "open",
    rate_per_s=50,
    duration_s=40,
    arrivals="poisson",
    prompts="builtin:chat",
    output_tokens=9,
)
RAMP = Workload(
    "ramp",
    stages=(Stage(0, 100, 10), Stage(100, 100, 10), Stage(100, 0, 20)),
    duration_s=40,
    arrivals="constant",
)


def spread(offsets: tuple[float, ...]) -> float:
    """Coefficient of variation of the gaps."""
    gaps = [later - earlier for earlier, later in pairwise(offsets)]
    return statistics.stdev(gaps) / statistics.mean(gaps)


def due(offsets: tuple[float, ...], begin_s: float, end_s: float) -> int:
    return sum(begin_s <= offset < end_s for offset in offsets)


def test_constant_arrivals_are_evenly_spaced_from_the_start() -> None:
    workload = Workload("open", rate_per_s=4, duration_s=2)
    assert send_offsets_s(workload, 1, 0) == (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75)


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_process() -> None:
    offsets = send_offsets_s(RATE, 1, 0)
    assert len(offsets) == pytest.approx(2000, rel=0.1)
    assert spread(offsets) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_the_rate_and_a_spread_of_one_by_the_root_of_their_shape(
    shape: float,
) -> None:
    offsets = send_offsets_s(
        replace(RATE, arrivals="gamma", burstiness=shape, rate_per_s=200), 1, 0
    )
    assert len(offsets) == pytest.approx(8000, rel=0.1)
    assert spread(offsets) == pytest.approx(shape**-0.5, rel=0.1)


def test_gamma_of_shape_one_is_poisson() -> None:
    assert send_offsets_s(replace(RATE, arrivals="gamma", burstiness=1.0), 1, 0) == send_offsets_s(
        RATE, 1, 0
    )


def test_a_ramp_has_as_many_requests_as_lie_below_its_rates() -> None:
    offsets = send_offsets_s(RAMP, 1, 0)
    assert (due(offsets, 0, 10), due(offsets, 10, 20), due(offsets, 20, 40)) == (500, 1000, 1000)
    assert (
        due(offsets, 0, 5) == 125
    )  # a quarter of what the whole rise has: the rate grows in a straight line
    assert due(offsets, 30, 40) == 250


def test_a_random_ramp_keeps_its_rates_and_its_kind() -> None:
    workload = replace(RAMP, arrivals="poisson", stages=(Stage(0, 400, 20), Stage(400, 400, 20)))
    offsets = send_offsets_s(workload, 1, 0)
    assert due(offsets, 0, 10) == pytest.approx(1000, rel=0.1)
    assert due(offsets, 10, 20) == pytest.approx(3000, rel=0.1)
    assert spread(tuple(offset for offset in offsets if offset >= 20)) == pytest.approx(1, rel=0.1)


def test_one_rate_is_a_ramp_of_one_even_stage() -> None:
    ramp = replace(RATE, rate_per_s=0, stages=(Stage(50, 50, 40),))
    assert send_offsets_s(ramp, 1, 0) == send_offsets_s(RATE, 1, 0)


def test_nothing_is_due_while_the_rate_is_zero() -> None:
    offsets = send_offsets_s(
        replace(RAMP, stages=(Stage(0, 0, 5), Stage(10, 10, 1), Stage(0, 0, 5), Stage(10, 10, 1))),
        1,
        0,
    )
    assert (due(offsets, 5, 6), due(offsets, 11, 12), len(offsets)) == (10, 10, 20)


STAGES = st.lists(
    st.builds(Stage, st.floats(0, 50), st.floats(0, 50), st.floats(0.1, 10)), min_size=1, max_size=4
).map(tuple)


@given(
    STAGES.filter(lambda stages: sum(requests_due(stage) for stage in stages) > 0.01),
    st.sampled_from(["constant", "poisson", "gamma"]),
)
def test_arrivals_of_a_ramp_ascend_within_it_and_are_never_none(
    stages: tuple[Stage, ...], arrivals: str
) -> None:
    offsets = send_offsets_s(Workload("w", stages=stages, arrivals=arrivals, burstiness=0.5), 1, 0)
    assert list(offsets) == sorted(offsets)
    assert offsets[0] >= 0 and offsets[-1] <= sum(stage.duration_s for stage in stages) + 1e-9


@given(
    st.floats(0.1, 100),
    st.floats(0.1, 20),
    st.sampled_from(["", "constant", "poisson"]),
    st.integers(0, 99),
)
def test_arrivals_ascend_within_the_duration_and_are_never_none(
    rate: float, duration: float, arrivals: str, seed: int
) -> None:
    offsets = send_offsets_s(
        Workload("w", rate_per_s=rate, duration_s=duration, arrivals=arrivals), seed, 0
    )
    assert list(offsets) == sorted(offsets)
    assert offsets[0] >= 0 and offsets[-1] <= duration + 1e-9


def test_arrivals_of_a_run_repeat_and_those_of_the_next_run_differ() -> None:
    assert send_offsets_s(RATE, 1, 0) == send_offsets_s(RATE, 1, 0)
    assert send_offsets_s(RATE, 1, 0) != send_offsets_s(RATE, 1, 1)


@pytest.mark.parametrize(
    "workload",
    [
        Workload("w"),
        Workload("w", rate_per_s=2),
        Workload("w", rate_per_s=1, duration_s=1, arrivals="bursty"),
        Workload("w", rate_per_s=1, duration_s=1, arrivals="gamma"),
        Workload("w", stages=(Stage(0, 0, 5),)),
        Workload("w", stages=(Stage(1, 1, 5), Stage(-1, 0, 5))),
    ],
)
def test_a_workload_without_a_usable_rate_is_refused(workload: Workload) -> None:
    with pytest.raises(ValueError, match="workload 'w'"):
        send_offsets_s(workload, 1, 0)
