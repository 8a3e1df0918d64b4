"""Owns the start of a shard that others start together with it: ready, then the moment to begin, or
a cancel. Chooses no moment.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from time import perf_counter_ns
from typing import Final

BEGIN_TIMEOUT_S: Final = (
    60.0  # for the word to begin, once all is prepared: who gives it may be gone
)


class StartGate:
    """One run's start, seen from two threads: the shard waits in its own, orders come in another."""

    def __init__(self) -> None:
        self._prepared = threading.Event()
        self._begin: Future[int] = Future()
        self._cancelled = threading.Event()

    @staticmethod
    def already_open() -> StartGate:
        """One that waits for nobody."""
        start = StartGate()
        start.begin(0)
        return start

    @property
    def is_cancelled(self) -> bool:
        """The shard is to end, whether it has begun or not."""
        return self._cancelled.is_set()

    def await_prepared(self) -> None:
        """Block until the shard has all it needs to begin, or will never begin."""
        self._prepared.wait()

    def mark_ended(self) -> None:
        """The shard has ended: whoever waits for it to be prepared waits in vain."""
        self._prepared.set()

    def begin(self, at_ns: int) -> None:
        """Begin at that time of perf_counter_ns here; one that is past means at once."""
        if not self._begin.done():
            self._begin.set_result(at_ns)

    def cancel(self) -> None:
        """End it."""
        self._cancelled.set()
        self.begin(0)

    async def wait_to_begin(self) -> int:
        """Say that all is prepared, and wait for the moment to begin. Raises TimeoutError when
        nobody gives it.
        """
        self._prepared.set()
        async with asyncio.timeout(BEGIN_TIMEOUT_S):
            return await asyncio.wrap_future(self._begin) or perf_counter_ns()
