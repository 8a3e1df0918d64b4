"""Owns the look at the host's clock: whether it jumped since the agent started, and whether the
kernel calls it synchronised. Sets none.
"""

from __future__ import annotations

import ctypes
import time

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC of adjtimex(2)
_JUMP_S = 1.0


class _Timex(ctypes.Structure):
    """The head of `struct timex`; the rest is room."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("frequency", ctypes.c_long), ("largest_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 256),
    ]  # fmt: skip


class ClockWatch:
    """Wall time against monotonic time, from its making on. Durations are measured by the latter,
    so a jump spoils only dates.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def jumped_s(self) -> float:
        """Seconds that the wall clock was set forward (negative: back) since then; 0 when it only
        drifted.
        """
        jump_s = (time.time_ns() - time.monotonic_ns() - self._offset_ns) / 1e9
        return jump_s if abs(jump_s) > _JUMP_S else 0.0


def is_synchronised() -> bool | None:
    """As the kernel knows it of its NTP daemon; None where it cannot be asked."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = _Timex()
        return (
            None if libc.adjtimex(ctypes.byref(state)) < 0 else not state.status & _UNSYNCHRONISED
        )
    except (OSError, AttributeError):
        return None
