"""Lets all shards of a run start at the same moment: a shard reports that it is prepared, then
waits for the order to begin or a cancellation.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from time import perf_counter_ns
from typing import Final

BEGIN_TIMEOUT_S: Final = 60.0  # from prepared to the order to begin; its sender may be gone


class StartGate:
    """Controls the start of one shard. The shard waits in its own thread, and another thread passes
    on the orders.
    """

    def __init__(self) -> None:
        self._prepared = threading.Event()
        self._begin: Future[int] = Future()
        self._cancelled = threading.Event()

    @staticmethod
    def already_open() -> StartGate:
        """Return a gate that lets the shard begin at once."""
        start = StartGate()
        start.begin(0)
        return start

    @property
    def is_cancelled(self) -> bool:
        """Return whether the shard must end. This may be ordered before or after it has begun."""
        return self._cancelled.is_set()

    def await_prepared(self) -> None:
        """Block until the shard is prepared to begin, or has ended without being prepared."""
        self._prepared.wait()

    def mark_ended(self) -> None:
        """Release the threads that wait in `await_prepared`, because the shard has ended."""
        self._prepared.set()

    def begin(self, at_ns: int) -> None:
        """Let the shard begin when perf_counter_ns of this host reaches `at_ns`, or at once if that
        time has passed.
        """
        if not self._begin.done():
            self._begin.set_result(at_ns)

    def cancel(self) -> None:
        """Order the shard to end."""
        self._cancelled.set()
        self.begin(0)

    async def wait_to_begin(self) -> int:
        """Report that the shard is prepared, and wait for the order to begin. Return the time at
        which to begin, as perf_counter_ns. Raises TimeoutError after BEGIN_TIMEOUT_S.
        """
        self._prepared.set()
        async with asyncio.timeout(BEGIN_TIMEOUT_S):
            return await asyncio.wrap_future(self._begin) or perf_counter_ns()
