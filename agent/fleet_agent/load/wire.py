"""Owns how a shard listens to its sockets: the kernel's time of arrival with each read, moved to the monotonic clock. Knows no HTTP.

The time of a read is the one that the kernel gave the bytes as they arrived (SO_TIMESTAMPNS), not the one at which this process was woken.
Whatever the loop does in between, another stream's read or a request that is sent, does not make an answer look late (decision 0014).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Final

READ_BYTES: Final = 1 << 16
FRESH_NS: Final = 1_000_000  # so long an offset of the clocks stands
SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python's socket module does not name it
STAMP: Final = struct.Struct("@ll")  # struct timespec
ROOM: Final = socket.CMSG_SPACE(STAMP.size)
_unpack: Final = STAMP.unpack


class Wire:
    """The sockets of one event loop. Use it on that loop only."""

    __slots__ = ("_apart_ns", "_loop", "_seen_ns")

    def __init__(self) -> None:
        """Raises RuntimeError outside of a running loop."""
        self._loop = asyncio.get_running_loop()
        self._seen_ns = perf_counter_ns()
        self._apart_ns = time_ns() - self._seen_ns

    def add(self, link: socket.socket, read: Callable[[], None]) -> Callable[[], None]:
        """Call `read` whenever a connected, non-blocking socket has news; the function that is returned ends that, and closes it."""
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        loop, number = self._loop, link.fileno()
        loop.add_reader(number, read)

        def remove() -> None:
            loop.remove_reader(number)
            link.close()

        return remove

    def arrival_ns(self, stamp: bytes, after_ns: int) -> int:
        """The perf_counter_ns of a kernel's stamp that came with a read just now. It cannot be before `after_ns`, nor later than now.

        While the wall clock is being set nobody knows by which one a read was stamped: what cannot be is now.
        """
        now_ns = perf_counter_ns()
        if now_ns - self._seen_ns > FRESH_NS:
            self._seen_ns, self._apart_ns = now_ns, time_ns() - now_ns
        seconds, nanoseconds = _unpack(stamp)
        at_ns: int = seconds * 1_000_000_000 + nanoseconds - self._apart_ns
        return at_ns if after_ns <= at_ns <= now_ns else now_ns
