"""Durations and ratios as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.workload.prompt_sets import SETS
from fleet_agent.load.workload.prompts import LONG_CONTEXT, PREFIX, prompt_set
from fleet_controller.yaml.quantities import read_duration, read_ratio, write_duration, write_ratio
from fleet_protos.attachment import BUILTIN_PROMPTS


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30m", 1800), ("60s", 60), ("1h30m", 5400), ("250ms", 0.25), (45, 45), (0.5, 0.5), ("45", 45), ("1.5h", 5400), ("1d", 86400),
     (" 2 m 5 s ", 125), ("1m250ms", 60.25), (0, 0)],
)  # fmt: skip
def test_a_duration_reads_as_its_seconds(written: object, seconds: float) -> None:
    assert read_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "m",
        "5 minutes",
        "30m1h",
        "1h1h",
        "-5s",
        -1,
        "1e3s",
        "٣m",
        True,
        None,
        [],
        "400d",
        math.inf,
        math.nan,
        "9" * 100,
    ],
)
def test_anything_else_is_no_duration(written: object) -> None:
    with pytest.raises(ValueError, match=r"^is "):
        read_duration(written)


@given(st.integers(min_value=0, max_value=366 * 86400 * 1000))
def test_a_written_duration_reads_back_to_the_millisecond(milliseconds: int) -> None:
    assert round(read_duration(write_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.booleans()))
def test_a_duration_is_finite_and_not_negative_or_refused(written: object) -> None:
    try:
        seconds = read_duration(written)
    except ValueError:
        return
    assert 0 <= seconds <= 366 * 86400


@pytest.mark.parametrize(
    ("written", "share"),
    [
        ("2%", 0.02),
        (0.02, 0.02),
        ("0.02", 0.02),
        ("0.5 %", 0.005),
        ("-2%", -0.02),
        (1, 1.0),
        ("95%", 0.95),
    ],
)
def test_a_ratio_reads_as_its_share(written: object, share: float) -> None:
    assert read_ratio(written) == pytest.approx(share)


@pytest.mark.parametrize(
    "written", ["", "%", "two", "2 percent", "2%%", "1e2%", True, None, "9" * 100]
)
def test_anything_else_is_no_ratio(written: object) -> None:
    with pytest.raises(ValueError, match="is not a percentage"):
        read_ratio(written)


@given(st.integers(min_value=-99999, max_value=99999))
def test_a_written_ratio_reads_back(thousandths_of_percent: int) -> None:
    share = thousandths_of_percent / 100_000
    assert read_ratio(write_ratio(share)) == pytest.approx(share, rel=1e-5)


def test_the_prompt_sets_are_those_that_the_load_side_has() -> None:
    assert {*SETS, LONG_CONTEXT} == set(BUILTIN_PROMPTS)
    assert all(prompt_set(PREFIX + name) for name in BUILTIN_PROMPTS)
