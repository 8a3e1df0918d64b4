"""Wakes an event loop at an absolute time with a Linux timer, accurate to microseconds.

The timers of an event loop itself are accurate only to milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Spec(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")
    ]


class TimerFd:
    """Calls `on_time` once at the time that was set. A newly set time replaces the earlier time.

    Raises OSError if the system does not support timerfd.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_time: Callable[[], None]) -> None:
        self._fd: int = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._on_time = on_time
        self._spec = _Spec(0, 0, 0, 0)
        loop.add_reader(self._fd, self._on_readable)

    def set(self, at_s: float) -> None:
        """Call `on_time` when the monotonic clock reaches `at_s`, or at once if that time has
        passed.
        """
        whole = int(at_s)
        self._spec.value_s = whole
        self._spec.value_ns = max(int((at_s - whole) * 1e9), 1)
        _LIBC.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._on_time()
