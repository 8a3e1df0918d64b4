"""Owns the samples of how late one event loop wakes up; judges none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

PROBE_S: Final = 0.025  # sampled this often; a timer takes a virtual machine 50 µs
TIMER_NS: Final = (
    1_000_000  # uvloop's timers have a resolution of one millisecond: that much is not lag
)


class LoopLag:
    """Samples of one loop's lag beyond its timers' resolution, in nanoseconds."""

    def __init__(self) -> None:
        self._samples_ns: list[int] = []

    async def sample(self, on_sample: Callable[[], None] = lambda: None) -> None:
        """Take samples for ever; `each` is called after every one."""
        while True:
            before = perf_counter_ns()
            await asyncio.sleep(PROBE_S)
            self._samples_ns.append(
                max(0, perf_counter_ns() - before - round(PROBE_S * 1e9) - TIMER_NS)
            )
            on_sample()

    def drain_samples(self) -> list[int]:
        """The samples since the last time."""
        taken, self._samples_ns = self._samples_ns, []
        return taken
