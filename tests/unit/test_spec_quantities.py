"""Durations, ratios and argument names as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.prompt_sets import SETS
from fleet_controller.spec.arguments import ALIASES, Spelling, known_arguments, nearest_argument, spell
from fleet_controller.spec.prompts import BUILTIN_PROMPTS
from fleet_controller.spec.quantities import read_duration, read_ratio, write_duration, write_ratio


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30m", 1800), ("60s", 60), ("1h30m", 5400), ("250ms", 0.25), (45, 45), (0.5, 0.5), ("45", 45), ("1.5h", 5400), ("1d", 86400),
     (" 2 m 5 s ", 125), ("1m250ms", 60.25), (0, 0)],
)  # fmt: skip
def test_a_duration_reads_as_its_seconds(written: object, seconds: float) -> None:
    assert read_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", " ", "m", "5 minutes", "30m1h", "1h1h", "-5s", -1, "1e3s", "٣m", True, None, [], "400d", math.inf, math.nan, "9" * 100],
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
    ("written", "share"), [("2%", 0.02), (0.02, 0.02), ("0.02", 0.02), ("0.5 %", 0.005), ("-2%", -0.02), (1, 1.0), ("95%", 0.95)]
)
def test_a_ratio_reads_as_its_share(written: object, share: float) -> None:
    assert read_ratio(written) == pytest.approx(share)


@pytest.mark.parametrize("written", ["", "%", "two", "2 percent", "2%%", "1e2%", True, None, "9" * 100])
def test_anything_else_is_no_ratio(written: object) -> None:
    with pytest.raises(ValueError, match="is not a percentage"):
        read_ratio(written)


@given(st.integers(min_value=-99999, max_value=99999))
def test_a_written_ratio_reads_back(thousandths_of_percent: int) -> None:
    share = thousandths_of_percent / 100_000
    assert read_ratio(write_ratio(share)) == pytest.approx(share, rel=1e-5)


@pytest.mark.parametrize("written", ["tp", "--tp", "tp-size", "--tensor-parallel-size", "tensor_parallel_size", "tp_size"])
def test_all_spellings_of_an_argument_are_one(written: str) -> None:
    assert spell(written) == Spelling("tp_size", known=True)


def test_a_unique_beginning_is_completed_and_an_ambiguous_one_is_not() -> None:
    assert spell("mem-fraction") == Spelling("mem_fraction_static", known=True, shortened=True)
    assert spell("speculative_draft_model_p") == Spelling("speculative_draft_model_path", known=True, shortened=True)
    assert spell("speculative_draft") == Spelling("speculative_draft", known=False)


def test_every_alias_leads_to_a_known_argument() -> None:
    assert [alias for alias, name in ALIASES.items() if name not in known_arguments()] == []
    assert [alias for alias in ALIASES if alias in known_arguments()] == []


def test_a_typing_error_finds_the_argument_that_was_meant() -> None:
    assert nearest_argument("speculative_num_setps") == "speculative_num_steps"
    assert nearest_argument("tensor_paralel_size") == "tp_size"
    assert nearest_argument("zzz") == ""


def test_the_prompt_sets_are_those_that_the_load_side_has() -> None:
    assert sorted(BUILTIN_PROMPTS) == sorted(SETS)
