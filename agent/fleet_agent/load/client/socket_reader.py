"""Owns how a shard listens to its sockets: the kernel's time of arrival with each read, moved to
the monotonic clock.

The time of a read is the one that the kernel gave the bytes as they arrived (SO_TIMESTAMPNS), not
the one at which this process was woken. Whatever the loop does in between, another stream's read or
a request that is sent, does not make an answer look late (decision 0014).

There are two wires. The one here reads in callbacks of the loop and runs everywhere; `native.wire`
reads in C where the library could be built (decision 0018). A wire makes a line of each socket,
which tells its owner when there is something to decide.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Final, Protocol

from fleet_agent.load.client import http_framing
from fleet_agent.load.client.received import BufferedReads, DeferredReads
from fleet_agent.load.client.tls_stream import TlsStream

READ_BYTES: Final = 1 << 16
LOOK_BYTES: Final = 1 << 13
FRESH_NS: Final = 1_000_000  # so long an offset of the clocks stands
SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python's socket module does not name it
STAMP: Final = struct.Struct("@ll")  # struct timespec
ROOM: Final = socket.CMSG_SPACE(STAMP.size)
_unpack: Final = STAMP.unpack


class StreamListener(Protocol):
    """Who decides about a line: told on the loop, and of each thing once."""

    def on_data(self) -> None:
        """Something came, and the line was not told to watch, or can no longer (then `whole` is
        due).
        """
        ...

    def on_complete(self) -> None:
        """The answer that was watched is complete with the last byte that came."""
        ...

    def on_closed(self, error: OSError | None) -> None:
        """The peer has ended the connection, or it broke."""
        ...


class SocketStream(Protocol):
    """The incoming side of one connected socket."""

    @property
    def size(self) -> int:
        """Bytes that came since the last `expect`."""
        ...

    def expect_answer(self, sent_ns: int, most: int) -> bool:
        """An answer of at most so many bytes is due from now on: beyond, `Owner.look` is called,
        watched or not.

        False when the connection has ended or said something that nobody asked for.
        """
        ...

    def read_new(self) -> bytes:
        """What came since the last call, or since `expect`."""
        ...

    def read_all(self) -> bytes:
        """All that came since `expect`."""
        ...

    def watch_for_end(self, left: int, rest: bytes) -> None:
        """Tell of no read any more but of the end of a chunked answer, of which everything so far
        was `fresh`; at once where it has come.

        `left`: bytes to the next line with a chunk's size, `rest`: what has come from there on.
        """
        ...

    def detach_reads(self) -> DeferredReads:
        """The answer that was expected, as far as it came; it is not kept."""
        ...

    def drop(self) -> None:
        """Close the socket. Harmless when it is closed."""
        ...


class SocketReader(Protocol):
    """The sockets of one event loop. Use it on that loop only."""

    @property
    def cpu_s(self) -> float:
        """Seconds of a core that it has spent beside the loop's thread."""
        ...

    def attach(
        self, link: socket.socket, owner: StreamListener, secure: TlsStream | None
    ) -> SocketStream:
        """Listen to a connected, non-blocking socket, which is the line's to close."""
        ...

    def close(self) -> None:
        """Drop all lines."""
        ...


def arrival_ns(stamp_ns: int, apart_ns: int, after_ns: int, at_ns: int) -> int:
    """The perf_counter_ns of a kernel's stamp that came with a read just now. It cannot be before
    `after_ns`, nor later than now.

    While the wall clock is being set nobody knows by which one a read was stamped: what cannot be
    is now.
    """
    arrived_ns = stamp_ns - apart_ns
    return arrived_ns if after_ns <= arrived_ns <= at_ns else at_ns


class _NoListener:
    """Owns a line that was dropped: without a cycle through its connection, since nothing is
    collected while a run goes on.
    """

    def on_data(self) -> None:
        """See `Owner`."""

    def on_complete(self) -> None:
        """See `Owner`."""

    def on_closed(self, error: OSError | None) -> None:
        """See `Owner`."""


NO_LISTENER: Final = _NoListener()


class LoopSocketReader:
    """Reads in callbacks of the loop."""

    def __init__(self) -> None:
        """Raises RuntimeError outside of a running loop."""
        self._loop = asyncio.get_running_loop()
        self._seen_ns = perf_counter_ns()
        self._apart_ns = time_ns() - self._seen_ns
        self._lines: set[LoopSocketStream] = set()

    @property
    def cpu_s(self) -> float:
        """See `Wire`."""
        return 0.0

    def attach(
        self, link: socket.socket, owner: StreamListener, secure: TlsStream | None
    ) -> SocketStream:
        """See `Wire`."""
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        line = LoopSocketStream(link, owner, secure, self.arrived_ns)
        number = link.fileno()

        def remove() -> None:
            self._loop.remove_reader(number)
            self._lines.discard(line)
            link.close()

        line.remove = remove
        self._lines.add(line)
        self._loop.add_reader(number, line.on_readable)
        return line

    def close(self) -> None:
        """See `Wire`."""
        for line in tuple(self._lines):
            line.drop()

    def arrived_ns(self, stamp: bytes, after_ns: int) -> int:
        """When the bytes arrived that were read just now."""
        now_ns = perf_counter_ns()
        if now_ns - self._seen_ns > FRESH_NS:
            self._seen_ns, self._apart_ns = now_ns, time_ns() - now_ns
        seconds, nanoseconds = _unpack(stamp)
        return arrival_ns(seconds * 1_000_000_000 + nanoseconds, self._apart_ns, after_ns, now_ns)


class LoopSocketStream:
    """See `Line`. `read` is the hot path: a read, two appends and one comparison."""

    __slots__ = ("_arrived_ns", "_at_ns", "_ending", "_link", "_look_at", "_most", "_owner", "_parts", "_receive", "_secure", "_taken",
                 "_times", "remove", "size")  # fmt: skip

    def __init__(
        self,
        link: socket.socket,
        owner: StreamListener,
        secure: TlsStream | None,
        arrived_ns: Callable[[bytes, int], int],
    ) -> None:
        self.size = 0
        self.remove: Callable[[], None] | None = None  # none: closed
        self._owner: StreamListener = owner
        self._link = link
        self._receive = link.recvmsg
        self._secure = secure
        self._arrived_ns = arrived_ns
        self._at_ns = 0  # of the newest read, or of the sending
        self._times: list[int] = []
        self._parts: list[bytes] = []
        self._taken = 0  # parts that were looked at
        self._ending: http_framing.ChunkedEnd | None = None
        self._look_at = self._most = 0

    def on_readable(self) -> None:
        """There is news. uvloop tells of a broken socket once, also where bytes came before it
        broke.
        """
        if (
            self._read_once()
            and self.remove is not None
            and (broke := self._link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        ):
            while self._read_once(is_last=True):
                pass
            self._owner.on_closed(OSError(broke, os.strerror(broke)))

    def _read_once(self, *, is_last: bool = False) -> bool:
        """True when bytes came. `is_last`: the end is told by somebody else."""
        try:
            data, control_data, _, _ = self._receive(READ_BYTES, ROOM)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if not is_last:
                self._owner.on_closed(error)
            return False
        self._at_ns = at_ns = (
            self._arrived_ns(control_data[0][2], self._at_ns) if control_data else perf_counter_ns()
        )
        if not data and not is_last:
            self._owner.on_closed(None)
        elif data and self._secure is not None:
            self._read_secure(at_ns, data, self._secure)
        elif data:
            self._store(at_ns, data)
        return bool(data) and self.remove is not None

    def _read_secure(self, at_ns: int, data: bytes, secure: TlsStream) -> None:
        """A piece of a TLS record, or whole ones."""
        try:
            plain, is_over = secure.decrypt(data)
        except ssl.SSLError as error:
            self._owner.on_closed(error)
            return
        if plain:
            self._store(at_ns, plain)
        if is_over:
            self._owner.on_closed(None)

    def _store(self, at_ns: int, data: bytes) -> None:
        self._times.append(at_ns)
        self._parts.append(data)
        self.size += (size := len(data))
        if self._ending is None:
            self._owner.on_data()
        elif size < 4 or data.endswith(b"\r\n\r\n") or self.size > self._look_at:
            self._find_end(self._ending)

    def _find_end(self, ending: http_framing.ChunkedEnd) -> None:
        """Where a chunked answer may have ended (a read that ends in an empty line, or is tiny),
        and now and then.

        What was looked at needs no look at the end, when the next request of the slot is due.
        """
        found = (
            http_framing.ANSWER_NEEDS_PARSING
            if self.size > self._most
            else ending.feed(self.read_new())
        )
        self._look_at = self.size + LOOK_BYTES
        if found != http_framing.ANSWER_GOES_ON:
            self._ending = None
            (
                self._owner.on_complete
                if found == http_framing.ANSWER_AT_END
                else self._owner.on_data
            )()

    def expect_answer(self, sent_ns: int, most: int) -> bool:
        """See `Line`."""
        self._at_ns, self._most = sent_ns, most
        return not self._parts

    def read_new(self) -> bytes:
        """See `Line`."""
        new, self._taken = self._parts[self._taken :], len(self._parts)
        return b"".join(new)

    def read_all(self) -> bytes:
        """See `Line`."""
        self._taken = len(self._parts)
        return b"".join(self._parts)

    def watch_for_end(self, left: int, rest: bytes) -> None:
        """See `Line`."""
        self._ending = http_framing.ChunkedEnd(left, rest)
        self._find_end(self._ending)

    def detach_reads(self) -> DeferredReads:
        """See `Line`."""
        taken = BufferedReads(self._times, self._parts, self.size)
        self._times, self._parts, self._taken, self.size, self._ending = [], [], 0, 0, None
        return taken

    def drop(self) -> None:
        """See `Line`."""
        remove, self.remove = self.remove, None
        if remove is not None:
            self._owner = NO_LISTENER
            remove()
