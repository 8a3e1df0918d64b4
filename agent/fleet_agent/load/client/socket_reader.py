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
CHECK_BYTES: Final = 1 << 13
OFFSET_VALID_NS: Final = 1_000_000  # so long an offset of the clocks stands
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

    def expect_answer(self, sent_ns: int, max_bytes: int) -> bool:
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
        self, sock: socket.socket, listener: StreamListener, tls: TlsStream | None
    ) -> SocketStream:
        """Listen to a connected, non-blocking socket, which is the line's to close."""
        ...

    def close(self) -> None:
        """Drop all lines."""
        ...


def arrival_ns(stamp_ns: int, offset_ns: int, after_ns: int, now_ns: int) -> int:
    """The perf_counter_ns of a kernel's stamp that came with a read just now. It cannot be before
    `after_ns`, nor later than now.

    While the wall clock is being set nobody knows by which one a read was stamped: what cannot be
    is now.
    """
    arrived_ns = stamp_ns - offset_ns
    return arrived_ns if after_ns <= arrived_ns <= now_ns else now_ns


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
        self._offset_taken_ns = perf_counter_ns()
        self._clock_offset_ns = time_ns() - self._offset_taken_ns
        self._streams: set[LoopSocketStream] = set()

    @property
    def cpu_s(self) -> float:
        """See `Wire`."""
        return 0.0

    def attach(
        self, sock: socket.socket, listener: StreamListener, tls: TlsStream | None
    ) -> SocketStream:
        """See `Wire`."""
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        stream = LoopSocketStream(sock, listener, tls, self.arrived_ns)
        number = sock.fileno()

        def remove() -> None:
            self._loop.remove_reader(number)
            self._streams.discard(stream)
            sock.close()

        stream.remove = remove
        self._streams.add(stream)
        self._loop.add_reader(number, stream.on_readable)
        return stream

    def close(self) -> None:
        """See `Wire`."""
        for stream in tuple(self._streams):
            stream.drop()

    def arrived_ns(self, stamp: bytes, after_ns: int) -> int:
        """When the bytes arrived that were read just now."""
        now_ns = perf_counter_ns()
        if now_ns - self._offset_taken_ns > OFFSET_VALID_NS:
            self._offset_taken_ns, self._clock_offset_ns = now_ns, time_ns() - now_ns
        seconds, nanoseconds = _unpack(stamp)
        return arrival_ns(
            seconds * 1_000_000_000 + nanoseconds, self._clock_offset_ns, after_ns, now_ns
        )


class LoopSocketStream:
    """See `Line`. `read` is the hot path: a read, two appends and one comparison."""

    __slots__ = (
        "_arrived_ns",
        "_at_ns",
        "_chunked_end",
        "_listener",
        "_max_bytes",
        "_next_check",
        "_parts",
        "_parts_read",
        "_receive",
        "_socket",
        "_times",
        "_tls",
        "remove",
        "size",
    )

    def __init__(
        self,
        sock: socket.socket,
        listener: StreamListener,
        tls: TlsStream | None,
        arrived_ns: Callable[[bytes, int], int],
    ) -> None:
        self.size = 0
        self.remove: Callable[[], None] | None = None  # none: closed
        self._listener: StreamListener = listener
        self._socket = sock
        self._receive = sock.recvmsg
        self._tls = tls
        self._arrived_ns = arrived_ns
        self._at_ns = 0  # of the newest read, or of the sending
        self._times: list[int] = []
        self._parts: list[bytes] = []
        self._parts_read = 0  # parts that were looked at
        self._chunked_end: http_framing.ChunkedEnd | None = None
        self._next_check = self._max_bytes = 0

    def on_readable(self) -> None:
        """There is news. uvloop tells of a broken socket once, also where bytes came before it
        broke.
        """
        if (
            self._read_once()
            and self.remove is not None
            and (broke := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        ):
            while self._read_once(is_last=True):
                pass
            self._listener.on_closed(OSError(broke, os.strerror(broke)))

    def _read_once(self, *, is_last: bool = False) -> bool:
        """True when bytes came. `is_last`: the end is told by somebody else."""
        try:
            data, control_data, _, _ = self._receive(READ_BYTES, ROOM)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if not is_last:
                self._listener.on_closed(error)
            return False
        self._at_ns = at_ns = (
            self._arrived_ns(control_data[0][2], self._at_ns) if control_data else perf_counter_ns()
        )
        if not data and not is_last:
            self._listener.on_closed(None)
        elif data and self._tls is not None:
            self._read_tls(at_ns, data, self._tls)
        elif data:
            self._store(at_ns, data)
        return bool(data) and self.remove is not None

    def _read_tls(self, at_ns: int, data: bytes, tls: TlsStream) -> None:
        """A piece of a TLS record, or whole ones."""
        try:
            plain, is_over = tls.decrypt(data)
        except ssl.SSLError as error:
            self._listener.on_closed(error)
            return
        if plain:
            self._store(at_ns, plain)
        if is_over:
            self._listener.on_closed(None)

    def _store(self, at_ns: int, data: bytes) -> None:
        self._times.append(at_ns)
        self._parts.append(data)
        self.size += (size := len(data))
        if self._chunked_end is None:
            self._listener.on_data()
        elif size < 4 or data.endswith(b"\r\n\r\n") or self.size > self._next_check:
            self._find_end(self._chunked_end)

    def _find_end(self, ending: http_framing.ChunkedEnd) -> None:
        """Where a chunked answer may have ended (a read that ends in an empty line, or is tiny),
        and now and then.

        What was looked at needs no look at the end, when the next request of the slot is due.
        """
        found = (
            http_framing.ANSWER_NEEDS_PARSING
            if self.size > self._max_bytes
            else ending.feed(self.read_new())
        )
        self._next_check = self.size + CHECK_BYTES
        if found != http_framing.ANSWER_GOES_ON:
            self._chunked_end = None
            (
                self._listener.on_complete
                if found == http_framing.ANSWER_AT_END
                else self._listener.on_data
            )()

    def expect_answer(self, sent_ns: int, max_bytes: int) -> bool:
        """See `Line`."""
        self._at_ns, self._max_bytes = sent_ns, max_bytes
        return not self._parts

    def read_new(self) -> bytes:
        """See `Line`."""
        new, self._parts_read = self._parts[self._parts_read :], len(self._parts)
        return b"".join(new)

    def read_all(self) -> bytes:
        """See `Line`."""
        self._parts_read = len(self._parts)
        return b"".join(self._parts)

    def watch_for_end(self, left: int, rest: bytes) -> None:
        """See `Line`."""
        self._chunked_end = http_framing.ChunkedEnd(left, rest)
        self._find_end(self._chunked_end)

    def detach_reads(self) -> DeferredReads:
        """See `Line`."""
        taken = BufferedReads(self._times, self._parts, self.size)
        self._times, self._parts, self._parts_read, self.size, self._chunked_end = (
            [],
            [],
            0,
            0,
            None,
        )
        return taken

    def drop(self) -> None:
        """See `Line`."""
        remove, self.remove = self.remove, None
        if remove is not None:
            self._listener = NO_LISTENER
            remove()
