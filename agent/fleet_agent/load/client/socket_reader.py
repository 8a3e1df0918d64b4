"""Reads the sockets of a shard and records when the bytes of each read arrived.

The arrival time is when the kernel received the bytes (SO_TIMESTAMPNS), converted to the monotonic
clock. It is not when this process woke up, so an answer does not look late because the event loop
was busy with another stream or request (decision 0014).

There are two readers. LoopSocketReader, in this module, reads in callbacks of the event loop and
works everywhere. `native_reader` reads in C and needs a compiled library (decision 0018). A reader
makes a stream for each socket. The stream calls its listener when there is something to decide.
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
    """Receives the events of a stream and decides what happens next. Each method is called on the
    event loop, once for each event.
    """

    def on_data(self) -> None:
        """Handle new data. This is called while the stream does not watch for the end of the
        answer, or when it can no longer watch for it. In the second case the listener must read the
        whole answer with `read_all`.
        """
        ...

    def on_complete(self) -> None:
        """Handle the end of an answer that the stream watches. The answer is complete with the last
        byte that arrived.
        """
        ...

    def on_closed(self, error: OSError | None) -> None:
        """Handle the end of the connection. `error` is None if the server closed the connection,
        else the reason why it broke.
        """
        ...


class SocketStream(Protocol):
    """Receives the data of one connected socket."""

    @property
    def size(self) -> int:
        """Return the number of bytes that arrived since the last call of `expect_answer`."""
        ...

    def expect_answer(self, sent_ns: int, max_bytes: int) -> bool:
        """Prepare for an answer of at most `max_bytes`. If it is longer, `StreamListener.on_data`
        is called even while the stream watches for the end.

        Return False if the connection has ended or has received unexpected bytes.
        """
        ...

    def read_new(self) -> bytes:
        """Return the bytes that arrived since the last call, or since `expect_answer`."""
        ...

    def read_all(self) -> bytes:
        """Return all bytes that arrived since `expect_answer`."""
        ...

    def watch_for_end(self, left: int, rest: bytes) -> None:
        """Watch for the end of a chunked answer, and call the listener only at the end. It is
        called at once if the end has already arrived.

        The listener has read the answer up to here with `read_new`. `left` is the number of bytes
        before the next line with the size of a chunk. `rest` is the part of this line that has
        arrived.
        """
        ...

    def detach_reads(self) -> DeferredReads:
        """Return the reads of the answer. The stream forgets them."""
        ...

    def drop(self) -> None:
        """Close the socket. Does nothing if it is already closed."""
        ...


class SocketReader(Protocol):
    """Reads the sockets of one event loop. Use it only on this loop."""

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds that the reader used outside of the event loop's thread."""
        ...

    def attach(
        self, sock: socket.socket, listener: StreamListener, tls: TlsStream | None
    ) -> SocketStream:
        """Begin to read a connected, non-blocking socket. The stream then owns the socket and
        closes it.
        """
        ...

    def close(self) -> None:
        """Drop all streams."""
        ...


def arrival_ns(stamp_ns: int, offset_ns: int, after_ns: int, now_ns: int) -> int:
    """Convert the kernel's timestamp of a read that has just happened to perf_counter_ns. The
    result is between `after_ns` and `now_ns`.

    A timestamp outside of this range is replaced by `now_ns`. This happens if the wall clock is set
    between the timestamp and the read.
    """
    arrived_ns = stamp_ns - offset_ns
    return arrived_ns if after_ns <= arrived_ns <= now_ns else now_ns


class _NoListener:
    """Replaces the listener of a dropped stream. A dropped stream must not refer to its connection,
    because the garbage collector, which would end the reference cycle, is off during a run.
    """

    def on_data(self) -> None:
        """Do nothing."""

    def on_complete(self) -> None:
        """Do nothing."""

    def on_closed(self, error: OSError | None) -> None:
        """Do nothing."""


NO_LISTENER: Final = _NoListener()


class LoopSocketReader:
    """Implements SocketReader with callbacks of the event loop."""

    def __init__(self) -> None:
        """Raise RuntimeError outside of a running event loop."""
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
        """Convert the kernel's timestamp of a read that has just happened."""
        now_ns = perf_counter_ns()
        if now_ns - self._offset_taken_ns > OFFSET_VALID_NS:
            self._offset_taken_ns, self._clock_offset_ns = now_ns, time_ns() - now_ns
        seconds, nanoseconds = _unpack(stamp)
        return arrival_ns(
            seconds * 1_000_000_000 + nanoseconds, self._clock_offset_ns, after_ns, now_ns
        )


class LoopSocketStream:
    """Implements SocketStream for LoopSocketReader. The hot path is `_read_once`: one read, two
    appends and one comparison.
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
        """Read once. If the socket is broken, read everything that arrived before it broke, because
        uvloop reports a broken socket only once.
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
        """Read once. Return True if bytes arrived and the socket is still open. With `is_last`, the
        caller reports the end of the connection.
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
        """Decrypt bytes that may be a part of a TLS record or several records."""
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
        """Check whether a chunked answer has ended. This is done after a read that ends with an
        empty line, after a tiny read, and after every CHECK_BYTES.

        The early checks save time at the end of the answer, when the next request of the slot is
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
