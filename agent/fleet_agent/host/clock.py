"""Checks whether the host's clock has jumped, and whether the kernel reports it as synchronised."""

from __future__ import annotations

import ctypes
import time

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC of adjtimex(2)
_JUMP_S = 1.0


class _Timex(ctypes.Structure):
    """The first fields of `struct timex` of adjtimex(2). `rest` has room for all other fields."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("largest_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


class ClockWatch:
    """Compares the wall clock with the monotonic clock, since this object was created.

    Durations are measured in monotonic time, so a jump affects only the dates of events.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def jumped_s(self) -> float:
        """Return how many seconds the wall clock was set forward. Negative if it was set back.

        Return 0 for a difference of at most one second, which may be drift.
        """
        jump_s = (time.time_ns() - time.monotonic_ns() - self._offset_ns) / 1e9
        return jump_s if abs(jump_s) > _JUMP_S else 0.0


def is_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised by NTP. Return None if that cannot be
    read.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = _Timex()
        return (
            None if libc.adjtimex(ctypes.byref(state)) < 0 else not state.status & _UNSYNCHRONISED
        )
    except (OSError, AttributeError):
        return None
