"""Owns when the slots of a closed loop begin: one after the other, so that the client's own burst
is not measured as the server's; pure.
"""

from __future__ import annotations

from typing import Final

_GAP_NS: Final = 200_000  # about what one request costs to send and its first answer to read
_MAX_SPREAD_NS: Final = 50_000_000


def first_due_ns(slot: int, users: int) -> int:
    """When the first request of a slot is due, after the start. `slot` counts from 0 over all
    shards, `users` is how many there are.
    """
    return slot * min(_GAP_NS, _MAX_SPREAD_NS // max(1, users - 1))


def all_due_ns(users: int) -> int:
    """When each slot has begun, after the start: at most 50 ms."""
    return first_due_ns(users - 1, users) if users else 0
