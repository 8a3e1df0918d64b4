"""Computes when the slots of a closed loop begin: one after another, so that the client's own burst
is not measured as the server's latency.
"""

from __future__ import annotations

from typing import Final

# about the time to send one request and to read the beginning of its answer
_GAP_NS: Final = 200_000
_MAX_SPREAD_NS: Final = 50_000_000


def first_due_ns(slot: int, users: int) -> int:
    """Return the nanoseconds after the start at which the first request of a slot is due. `slot`
    counts from 0 over all shards; `users` is the number of slots.
    """
    return slot * min(_GAP_NS, _MAX_SPREAD_NS // max(1, users - 1))


def all_due_ns(users: int) -> int:
    """Return the nanoseconds after the start by which every slot has begun: at most 50 ms."""
    return first_due_ns(users - 1, users) if users else 0
