"""Owns the sockets of one shard: one look at all that have news, and the kernel's time of arrival with each read. Knows no HTTP.

The time of a read is the one that the kernel gave the bytes as they arrived (SO_TIMESTAMPNS), not the one at which this process was woken.
Whatever the loop does in between, another stream's read or a request that is sent, does not make an answer look late (decision 0014).
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Final, Protocol

READ_BYTES: Final = 1 << 16
BUSY_FROM: Final = 8  # requests in flight from which on the loop is not asked between one look and the next
WAIT_S: Final = 0.001
QUIET_NS: Final = 2_000_000  # after so long without any, the next piece of news wakes the loop
TURN_NS: Final = 1_500_000  # longer is the loop not kept from its timers
SET_NS: Final = 1_000_000  # a wall clock that moves by more than this between two looks was set
SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python's socket module does not name it
STAMP: Final = struct.Struct("@ll")  # struct timespec
ROOM: Final = socket.CMSG_SPACE(STAMP.size)


class Listener(Protocol):
    """Who reads a socket when it has news."""

    def read(self, apart_ns: int) -> None:
        """Take what is there, as much as one `recvmsg` gives. `apart_ns`: the wall clock less perf_counter_ns; 0: stamps mean nothing."""
        ...


class Wire:
    """The sockets of one event loop. Use it on that loop only; `close` it before the loop ends."""

    def __init__(self) -> None:
        """Raises RuntimeError outside of a running loop."""
        self.busy = 0  # connections with a request in flight; who sends counts them
        self.due_ns = 0  # the next moment at which something is to be sent; 0: none is known
        self._epoll = select.epoll()
        self._listeners: dict[int, Callable[[int], None]] = {}
        self._apart_ns = time_ns() - perf_counter_ns()
        self._heard_ns = 0
        self._stirred = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._news)

    def add(self, link: socket.socket, listener: Listener) -> Callable[[], None]:
        """Listen to a connected, non-blocking socket; the function that is returned ends that, and closes it."""
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        number = link.fileno()
        self._listeners[number] = listener.read
        self._epoll.register(number, select.EPOLLIN)

        def remove() -> None:
            if not self._epoll.closed and self._listeners.pop(number, None) is not None:
                self._epoll.unregister(number)
            link.close()

        return remove

    def stir(self) -> None:
        """What came lets somebody go on: the loop is to have its turn."""
        self._stirred = True

    def close(self) -> None:
        """Listen no more."""
        if self._epoll.closed:
            return
        self._loop.remove_reader(self._epoll.fileno())
        self._listeners.clear()
        self._epoll.close()

    def _news(self) -> None:
        """The loop was woken: there is news."""
        if self.busy < BUSY_FROM:
            self._take(0.0)
            return
        self._loop.remove_reader(self._epoll.fileno())
        self._heard_ns = perf_counter_ns()
        self._turn()

    def _turn(self) -> None:
        """Wait for news and take it, again and again until there is little to do, without the loop in between.

        The loop gets its turn as soon as somebody waits for what came (`stir`), when something is due, and every other millisecond.
        """
        self._stirred = False
        until_ns = perf_counter_ns() + TURN_NS
        while not self._epoll.closed:
            took = self._take(0.0 if self.due_ns else WAIT_S)
            now_ns = perf_counter_ns()
            if took:
                self._heard_ns = now_ns
            if self.busy < BUSY_FROM or now_ns - self._heard_ns > QUIET_NS:
                self._loop.add_reader(self._epoll.fileno(), self._news)
                return
            if self._stirred or self.due_ns or now_ns > until_ns:
                self._loop.call_soon(self._turn)
                return

    def _take(self, wait_s: float) -> bool:
        """Read whatever has news; False when nothing has, after so long."""
        news = self._epoll.poll(wait_s)
        if not news:
            return False
        apart_ns = time_ns() - perf_counter_ns()  # the kernel's stamps are of the wall clock, which others may set: asked each time
        was_set = abs(apart_ns - self._apart_ns) > SET_NS
        self._apart_ns = apart_ns
        if was_set:
            apart_ns = 0
        listeners = self._listeners
        for number, _ in news:
            read = listeners.get(number)
            if read is not None:  # an earlier one's news may have ended it
                read(apart_ns)
        return True
