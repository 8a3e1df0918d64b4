"""Synchronises the start of a shard with other shards: prepared, then the moment to begin, or a
cancellation.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from time import perf_counter_ns
from typing import Final

BEGIN_TIMEOUT_S: Final = 60.0  # from prepared to the order to begin; its sender may be gone


class StartGate:
    """The start of one run, used from two threads: the shard waits in its own, and orders arrive in
    another.
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
        """Whether the shard must end, before or after it has begun."""
        return self._cancelled.is_set()

    def await_prepared(self) -> None:
        """Block until the shard is prepared to begin, or will never begin."""
        self._prepared.wait()

    def mark_ended(self) -> None:
        """Release the threads that wait for a shard that has ended."""
        self._prepared.set()

    def begin(self, at_ns: int) -> None:
        """Let the shard begin at `at_ns` of perf_counter_ns on this host; at once if that
        is past.
        """
        if not self._begin.done():
            self._begin.set_result(at_ns)

    def cancel(self) -> None:
        """End the shard."""
        self._cancelled.set()
        self.begin(0)

    async def wait_to_begin(self) -> int:
        """Report that the shard is prepared, and wait for the moment to begin. Raises TimeoutError
        after BEGIN_TIMEOUT_S.
        """
        self._prepared.set()
        async with asyncio.timeout(BEGIN_TIMEOUT_S):
            return await asyncio.wrap_future(self._begin) or perf_counter_ns()
