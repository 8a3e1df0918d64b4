"""Promises about times of several hosts: clocks that are apart by anything are reconciled, and how
sure that is can be told.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.client.request_record import RequestRecord, Response
from fleet_agent.load.cluster.clock_offset import (
    ClockOffset,
    ClockSample,
    estimate_offset,
    spread_ns,
    to_our_clock,
)
from fleet_agent.load.results.request_columns import Columns

NANOSECONDS = st.integers(1, 10**18)
WAYS = st.integers(0, 10**8)
DIGEST = "0" * 16


@given(NANOSECONDS, NANOSECONDS, st.lists(st.tuples(WAYS, WAYS), min_size=1, max_size=20))
def test_the_offset_is_true_to_within_its_uncertainty_however_unequal_the_ways(
    ours: int, theirs: int, ways: list[tuple[int, int]]
) -> None:
    looks, now = [], ours
    for there, back in ways:
        looks.append(ClockSample(now, now + there - ours + theirs, now + there + back))
        now += there + back
    found = estimate_offset(looks)
    assert abs(found.offset_ns - (theirs - ours)) <= found.uncertainty_ns
    assert found.uncertainty_ns <= (min(there + back for there, back in ways) + 1) // 2


def test_no_look_gives_no_offset() -> None:
    with pytest.raises(ValueError, match="never sampled"):
        estimate_offset([])


@given(st.integers(-(10**18), 10**18), NANOSECONDS, st.lists(NANOSECONDS, min_size=1, max_size=5))
def test_moving_a_request_to_our_clock_keeps_its_latencies(
    offset_ns: int, sent_ns: int, gaps: list[int]
) -> None:
    times = array("q", (sent_ns + sum(gaps[: count + 1]) for count in range(len(gaps))))
    request = RequestRecord(
        3, sent_ns + 1, sent_ns + 2, DIGEST, Response(200, times, last_ns=times[-1])
    )
    moved = to_our_clock(Columns.from_requests([request]), ClockOffset(offset_ns)).requests()[0]
    assert (
        moved.response.first_output_ns - moved.sent_ns
        == request.response.first_output_ns - request.sent_ns
    )
    assert moved.end_ns - moved.intended_ns == request.end_ns - request.intended_ns
    assert ClockOffset(offset_ns).theirs(moved.intended_ns) == request.intended_ns


def test_what_never_happened_still_never_happened_on_our_clock() -> None:
    moved = to_our_clock(
        Columns.from_requests([RequestRecord(1, 100, 0, DIGEST, Response(error_kind="connect"))]),
        ClockOffset(40),
    ).requests()[0]
    assert (moved.intended_ns, moved.sent_ns, moved.response.last_ns) == (60, 0, 0)


def test_shards_that_began_together_are_apart_by_what_their_clocks_leave_open() -> None:
    assert spread_ns([(1000, ClockOffset(0, 30)), (6000, ClockOffset(5000, 50))]) == 80
    assert spread_ns([(1000, ClockOffset(0, 30)), (6400, ClockOffset(5000, 50))]) == 480
    assert spread_ns([(1000, ClockOffset(0, 30))]) == 0
