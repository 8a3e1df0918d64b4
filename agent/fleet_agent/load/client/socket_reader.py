"""Reads the sockets of a shard and records the kernel's arrival time of each read, converted to the
monotonic clock.

The time of a read is when the kernel received the bytes (SO_TIMESTAMPNS), not when this process
woke up. So whatever the loop does in between (another stream's read, a request that is sent) does
not make an answer look late (decision 0014).

There are two readers. LoopSocketReader, here, reads in callbacks of the loop and runs everywhere;
`native_reader` reads in C where the library could be built (decision 0018). A reader makes a stream
of each socket. The stream calls its listener when there is something to decide.
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
OFFSET_VALID_NS: Final = 1_000_000  # the offset between the clocks is measured this often
SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python's socket module does not name it
STAMP: Final = struct.Struct("@ll")  # struct timespec
ROOM: Final = socket.CMSG_SPACE(STAMP.size)
_unpack: Final = STAMP.unpack


class StreamListener(Protocol):
    """Decides about a stream. Its methods are called on the loop, once for each event."""

    def on_data(self) -> None:
        """Handle new data while the stream does not watch for the end, or can no longer do so (then
        read everything with `read_all`).
        """
        ...

    def on_complete(self) -> None:
        """Handle the end of the watched answer: the last byte that arrived completes it."""
        ...

    def on_closed(self, error: OSError | None) -> None:
        """Handle the end of the connection: the peer closed it (None), or it broke."""
        ...


class SocketStream(Protocol):
    """The receiving side of one connected socket."""

    @property
    def size(self) -> int:
        """The number of bytes since the last `expect_answer`."""
        ...

    def expect_answer(self, sent_ns: int, max_bytes: int) -> bool:
        """Begin an answer of at most `max_bytes`. Beyond that, `StreamListener.on_data` is called
        even while the stream watches for the end.

        Return False if the connection has ended or has sent something unexpected.
        """
        ...

    def read_new(self) -> bytes:
        """Return what arrived since the last call, or since `expect_answer`."""
        ...

    def read_all(self) -> bytes:
        """Return all that arrived since `expect_answer`."""
        ...

    def watch_for_end(self, left: int, rest: bytes) -> None:
        """Report no more reads, only the end of a chunked answer that was read up to here with
        `read_new`; at once if the end is already there.

        `left` is the number of bytes to the next line with a chunk's size, `rest` what has arrived
        of that line.
        """
        ...

    def detach_reads(self) -> DeferredReads:
        """Return what arrived of the answer and forget it."""
        ...

    def drop(self) -> None:
        """Close the socket. Does nothing if it is closed."""
        ...


class SocketReader(Protocol):
    """The reader of the sockets of one event loop. Use it on that loop only."""

    @property
    def cpu_s(self) -> float:
        """The CPU seconds spent outside of the loop's thread."""
        ...

    def attach(
        self, sock: socket.socket, listener: StreamListener, tls: TlsStream | None
    ) -> SocketStream:
        """Read from a connected, non-blocking socket. The stream owns the socket and closes it."""
        ...

    def close(self) -> None:
        """Drop all streams."""
        ...


def arrival_ns(stamp_ns: int, offset_ns: int, after_ns: int, now_ns: int) -> int:
    """Return the perf_counter_ns that belongs to a kernel timestamp of a read that just happened.
    It is not before `after_ns` and not after `now_ns`.

    While the wall clock is being set, it is unknown which clock stamped a read; a time that is
    impossible is replaced by now.
    """
    arrived_ns = stamp_ns - offset_ns
    return arrived_ns if after_ns <= arrived_ns <= now_ns else now_ns


class _NoListener:
    """Replaces the listener of a dropped stream. This avoids a reference cycle through its
    connection, since the garbage collector is off during a run.
    """

    def on_data(self) -> None:
        """Do nothing."""

    def on_complete(self) -> None:
        """Do nothing."""

    def on_closed(self, error: OSError | None) -> None:
        """Do nothing."""


NO_LISTENER: Final = _NoListener()


class LoopSocketReader:
    """Implements SocketReader with callbacks of the loop."""

    def __init__(self) -> None:
        """Raises RuntimeError outside of a running loop."""
        self._loop = asyncio.get_running_loop()
        self._offset_taken_ns = perf_counter_ns()
        self._clock_offset_ns = time_ns() - self._offset_taken_ns
        self._streams: set[LoopSocketStream] = set()

    @property
    def cpu_s(self) -> float:
        return 0.0

    def attach(
        self, sock: socket.socket, listener: StreamListener, tls: TlsStream | None
    ) -> SocketStream:
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
        for stream in tuple(self._streams):
            stream.drop()

    def arrived_ns(self, stamp: bytes, after_ns: int) -> int:
        """Convert the kernel timestamp of a read that just happened."""
        now_ns = perf_counter_ns()
        if now_ns - self._offset_taken_ns > OFFSET_VALID_NS:
            self._offset_taken_ns, self._clock_offset_ns = now_ns, time_ns() - now_ns
        seconds, nanoseconds = _unpack(stamp)
        return arrival_ns(
            seconds * 1_000_000_000 + nanoseconds, self._clock_offset_ns, after_ns, now_ns
        )


class LoopSocketStream:
    """Implements SocketStream. `_read_once` is the hot path: a read, two appends and one
    comparison.
    """

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
        self.remove: Callable[[], None] | None = None  # None: closed
        self._listener: StreamListener = listener
        self._socket = sock
        self._receive = sock.recvmsg
        self._tls = tls
        self._arrived_ns = arrived_ns
        self._at_ns = 0  # of the newest read, or of sending the request
        self._times: list[int] = []
        self._parts: list[bytes] = []
        self._parts_read = 0  # number of parts that were read by the listener
        self._chunked_end: http_framing.ChunkedEnd | None = None
        self._next_check = self._max_bytes = 0

    def on_readable(self) -> None:
        """Read once. uvloop reports a broken socket only once, even if bytes arrived before it
        broke, so the rest is read here too.
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
        """Return True if bytes arrived and the socket is still open. `is_last`: the caller reports
        the end.
        """
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
        """Decrypt a part of a TLS record, or several records."""
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
        """Check whether a chunked answer has ended: after a read that ends in an empty line or is
        tiny, and after every CHECK_BYTES.

        What was checked early need not be checked at the end, when the next request of the slot is
        due.
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
        self._at_ns, self._max_bytes = sent_ns, max_bytes
        return not self._parts

    def read_new(self) -> bytes:
        new, self._parts_read = self._parts[self._parts_read :], len(self._parts)
        return b"".join(new)

    def read_all(self) -> bytes:
        self._parts_read = len(self._parts)
        return b"".join(self._parts)

    def watch_for_end(self, left: int, rest: bytes) -> None:
        self._chunked_end = http_framing.ChunkedEnd(left, rest)
        self._find_end(self._chunked_end)

    def detach_reads(self) -> DeferredReads:
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
        remove, self.remove = self.remove, None
        if remove is not None:
            self._listener = NO_LISTENER
            remove()
