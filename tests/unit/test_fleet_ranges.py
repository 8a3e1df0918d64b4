"""Ranges of names: what is written out is what a person would write, whatever the numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.fleet_file.name_ranges import MOST_NAMES, BadRange, expand, is_range

PREFIXES = st.text("abcgpu-._", max_size=6)
SPANS = st.tuples(st.integers(0, 5000), st.integers(0, 60)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)
WIDTHS = st.integers(1, 6)


def test_zero_padding_is_kept() -> None:
    assert expand("gpu[08-11]") == ("gpu08", "gpu09", "gpu10", "gpu11")


def test_without_padding_numbers_grow() -> None:
    assert expand("gpu[8-11]") == ("gpu8", "gpu9", "gpu10", "gpu11")


def test_a_comma_list_mixes_numbers_and_ranges() -> None:
    assert expand("gpu[01-03,07]") == ("gpu01", "gpu02", "gpu03", "gpu07")


def test_the_last_of_several_ranges_turns_fastest() -> None:
    assert expand("r[1-2]n[1-2].lab") == ("r1n1.lab", "r1n2.lab", "r2n1.lab", "r2n2.lab")


def test_the_brackets_of_an_address_are_no_range() -> None:
    assert (expand("[fe80::1]"), is_range("[fe80::1]")) == (("[fe80::1]",), False)


@given(PREFIXES, SPANS, WIDTHS, PREFIXES)
def test_a_padded_range_is_its_numbers_each_with_the_same_digits(
    before: str, span: tuple[int, int], width: int, after: str
) -> None:
    first, last = (f"{number:0{max(width, len(str(span[1])))}}" for number in span)
    names = expand(f"{before}[{first}-{last}]{after}")
    assert [
        int(name.removeprefix(before).removesuffix(after) if after else name.removeprefix(before))
        for name in names
    ] == list(range(span[0], span[1] + 1))
    assert {len(name) for name in names} == {len(before) + len(first) + len(after)}


@given(st.lists(SPANS, min_size=1, max_size=5))
def test_a_list_is_its_parts_one_after_the_other(spans: list[tuple[int, int]]) -> None:
    together = expand(f"g[{','.join(f'{first}-{last}' for first, last in spans)}]")
    assert together == tuple(name for first, last in spans for name in expand(f"g[{first}-{last}]"))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_several_ranges_multiply_and_no_name_comes_twice(counts: list[int]) -> None:
    names = expand("-".join(f"n[1-{count}]" for count in counts))
    product = 1
    for count in counts:
        product *= count
    assert (len(names), len(set(names))) == (product, product)


@given(st.text("[]0123456789-,gpu", max_size=24))
def test_any_text_is_written_out_or_refused_with_a_reason(text: str) -> None:
    try:
        names = expand(text)
    except BadRange as bad:
        assert bad.problem and bad.hint
    else:
        assert 0 < len(names) <= MOST_NAMES
        assert names == (text,) or not any("[" in name or "]" in name for name in names)


@given(st.text(st.characters(exclude_characters="[]"), max_size=24))
def test_a_text_without_brackets_is_one_name(text: str) -> None:
    assert expand(text) == (text,)


@pytest.mark.parametrize("text", ["g[1-99999999]", "g[1-9999][1-9999]", "g[0-999999999]"])
def test_a_range_of_millions_is_refused_without_being_written_out(text: str) -> None:
    with pytest.raises(BadRange, match="at most 10000"):
        expand(text)
