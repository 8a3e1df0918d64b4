"""Owns the sockets of one shard: one look at all that have news, and the kernel's time of arrival with each read. Knows no HTTP.

Two things make it exact and cheap, both measured in benchmarks/load (decision 0014):

- The time of a read is the one that the kernel gave the bytes as they arrived (SO_TIMESTAMPNS), not the one at which this process was
  woken. Whatever the loop does in between, another stream's read or a request that is sent, no longer makes an answer look late.
- So it need not be woken for every token: when many streams are busy it lets news gather for up to `GATHER_NS` and takes it all in one go,
  as a network card's interrupt moderation does. Waking up is most of what a token costs.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Final, Protocol

READ_BYTES: Final = 1 << 16
GATHER_NS: Final = 300_000  # at most so long does news wait for more
GATHER_FROM: Final = 8  # busy connections from which on it pays
SLEEP_LEAST_NS: Final = 30_000  # the system's own timers are no finer
SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python's socket module does not name it
_ROOM: Final = socket.CMSG_SPACE(16)
_TIMESPEC: Final = struct.Struct("@ll")


class Listener(Protocol):
    """Who is told of what a socket brings."""

    def came(self, at_ns: int, data: bytes) -> None:
        """Bytes, with the perf_counter_ns of their arrival. Empty: the peer has ended its side."""
        ...

    def broke(self, error: OSError) -> None:
        """The connection failed."""
        ...


class Wire:
    """The sockets of one event loop. Use it on that loop only; `close` it before the loop ends."""

    def __init__(self) -> None:
        """Raises RuntimeError outside of a running loop."""
        self.busy = 0  # connections with a request in flight; who sends counts them
        self.due_ns = 0  # the next moment at which something is to be sent, which no gathering may pass; 0: none is known
        self._epoll = select.epoll()
        self._lines: dict[int, _Line] = {}
        self._looked_ns = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def add(self, link: socket.socket, listener: Listener) -> Callable[[], None]:
        """Listen to a connected, non-blocking socket; the function that is returned ends that, and closes it."""
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        number = link.fileno()
        self._lines[number] = _Line(link, listener)
        self._epoll.register(number, select.EPOLLIN)

        def remove() -> None:
            if self._lines.pop(number, None) is not None:
                self._epoll.unregister(number)
                link.close()

        return remove

    def close(self) -> None:
        """Close what is left."""
        if self._epoll.closed:
            return
        self._loop.remove_reader(self._epoll.fileno())
        for line in self._lines.values():
            line.link.close()
        self._lines.clear()
        self._epoll.close()

    def _look(self) -> None:
        """Take all news there is, after some has gathered."""
        now_ns = perf_counter_ns()
        if self.busy >= GATHER_FROM:
            left_ns = self._looked_ns + GATHER_NS - now_ns
            if self.due_ns:
                left_ns = min(left_ns, self.due_ns - now_ns)
            if left_ns > SLEEP_LEAST_NS:
                time.sleep(left_ns / 1e9)
                now_ns = perf_counter_ns()
        self._looked_ns = now_ns
        apart_ns = time_ns() - perf_counter_ns()  # the kernel's times are of the wall clock, which others may set: asked each time
        lines = self._lines
        for number, _ in self._epoll.poll(0):
            line = lines.get(number)
            if line is not None:  # an earlier one's news may have ended it
                line.read(apart_ns)


class _Line:
    """One socket. `read` is the hot path."""

    __slots__ = ("_came", "_last_ns", "_listener", "_receive", "link")

    def __init__(self, link: socket.socket, listener: Listener) -> None:
        self.link = link
        self._receive = link.recvmsg
        self._listener = listener
        self._came = listener.came
        self._last_ns = perf_counter_ns()

    def read(self, apart_ns: int) -> None:
        try:
            data, said, _, _ = self._receive(READ_BYTES, _ROOM)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._listener.broke(error)
            return
        at_ns = now_ns = perf_counter_ns()
        if said:
            seconds, nanoseconds = _TIMESPEC.unpack(said[0][2])
            at_ns = seconds * 1_000_000_000 + nanoseconds - apart_ns
            if not self._last_ns <= at_ns <= now_ns:  # the wall clock was set in between
                at_ns = now_ns
        self._last_ns = at_ns
        self._came(at_ns, data)
