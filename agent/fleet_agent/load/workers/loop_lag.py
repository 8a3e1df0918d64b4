"""Samples how late an event loop wakes up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

PROBE_S: Final = 0.025  # time between samples; a timer costs 50 µs on a virtual machine
TIMER_NS: Final = 1_000_000  # the resolution of uvloop's timers, which does not count as lag


class LoopLag:
    """Samples how much later than requested an event loop wakes up, in nanoseconds. The resolution
    of the loop's timers is subtracted.
    """

    def __init__(self) -> None:
        self._samples_ns: list[int] = []

    async def sample(self, on_sample: Callable[[], None] = lambda: None) -> None:
        """Take samples until cancelled. Call `on_sample` after each sample."""
        while True:
            before = perf_counter_ns()
            await asyncio.sleep(PROBE_S)
            self._samples_ns.append(
                max(0, perf_counter_ns() - before - round(PROBE_S * 1e9) - TIMER_NS)
            )
            on_sample()

    def drain_samples(self) -> list[int]:
        """Return the samples that were taken since the last call."""
        taken, self._samples_ns = self._samples_ns, []
        return taken
