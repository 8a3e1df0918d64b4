"""Promises of how a closed loop begins: one slot after the other, and all of them soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.workload.slot_schedule import all_due_ns, first_due_ns


def test_slots_begin_a_fifth_of_a_millisecond_apart() -> None:
    assert [first_due_ns(slot, 32) for slot in (0, 1, 31)] == [0, 200_000, 6_200_000]
    assert (all_due_ns(1), all_due_ns(32)) == (0, 6_200_000)


@given(st.integers(1, 100_000))
def test_however_many_they_are_all_have_begun_within_fifty_milliseconds(users: int) -> None:
    assert first_due_ns(users - 1, users) == all_due_ns(users) <= 50_000_000
