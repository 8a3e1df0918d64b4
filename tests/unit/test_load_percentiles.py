"""Promises of percentiles: those of the sorted values, however the values come and however many
there are.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.load.results.percentiles import percentile, percentiles, stream_percentiles

NANOSECONDS = (
    st.integers(0, 3)
    | st.integers(0, 10**13)
    | st.integers(5_000_000, 5_000_900)
    | st.integers(-(10**9), 0)
)
SHARES = st.lists(st.sampled_from([0.0, 0.5, 0.99, 1.0]) | st.floats(0, 1), min_size=1, max_size=4)


def sorted_percentile(values: list[int], share: float) -> float:
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@settings(deadline=None)
@given(st.lists(st.lists(NANOSECONDS, max_size=30), max_size=6), SHARES)
def test_a_streamed_percentile_is_that_of_the_sorted_values(
    arrays: list[list[int]], shares: list[float]
) -> None:
    values = [value for array in arrays for value in array]
    found = stream_percentiles(lambda: (pa.array(array, pa.int64()) for array in arrays), *shares)
    assert found == ([sorted_percentile(values, share) for share in shares] if values else [])


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=1), SHARES)
def test_values_at_hand_and_those_of_arrow_have_the_same_percentiles(
    values: list[int], shares: list[float]
) -> None:
    assert percentiles(pa.array(values, pa.int64()), *shares) == percentiles(values, *shares)
    assert percentiles(values, *shares) == [sorted_percentile(values, share) for share in shares]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_lies_within_the_values(values: list[float], share: float) -> None:
    assert min(values) <= percentile(values, share) <= max(values)


def test_percentiles_interpolate_between_the_closest_ranks() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([10, 20], 0.99) == pytest.approx(19.9)
    assert percentile([], 0.5) == percentile(pa.array([], pa.int64()), 0.5) == 0


def test_a_stream_that_gives_less_when_it_is_run_through_again_is_refused() -> None:
    runs = iter([[1, 2, 3_000_000_000], [1]])
    with pytest.raises(ValueError, match="the stream has changed"):
        stream_percentiles(lambda: [pa.array(next(runs), pa.int64())], 0.99)
