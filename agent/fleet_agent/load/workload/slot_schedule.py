"""Computes when each slot of a closed loop begins. Slots begin one after another, so that a burst
of the client is not measured as latency of the server.
"""

from __future__ import annotations

from typing import Final

# about the time to send one request and to read the beginning of its answer
_GAP_NS: Final = 200_000
_MAX_SPREAD_NS: Final = 50_000_000


def first_due_ns(slot: int, users: int) -> int:
    """Return when the first request of a slot is due, in nanoseconds after the start of the run.
    `slot` counts from 0 over all shards, and `users` is the number of slots.
    """
    return slot * min(_GAP_NS, _MAX_SPREAD_NS // max(1, users - 1))


def all_due_ns(users: int) -> int:
    """Return when the last slot has begun, in nanoseconds after the start of the run: at most 50
    ms.
    """
    return first_due_ns(users - 1, users) if users else 0
