"""Reads sockets in C. A thread without Python's lock stores what arrives. It notifies the event
loop only when the client has to decide something.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from array import array
from collections import deque
from itertools import count
from typing import Final

from fleet_agent.load.client.native.library import (
    BROKEN,
    CLOSED,
    END,
    LOOK,
    Library,
    NativeAnswer,
    StreamNews,
    load_library,
)
from fleet_agent.load.client.received import NO_READS, DeferredReads, RecordedReads
from fleet_agent.load.client.socket_reader import (
    NO_LISTENER,
    LoopSocketReader,
    SocketReader,
    SocketStream,
    StreamListener,
)
from fleet_agent.load.client.tls_stream import TlsStream

_NEWS_AT_ONCE: Final = 64
_PEEK_BYTES: Final = 1 << 16
_COPY_DELAY_S: Final = 0.1
# Answers copied in one turn of the loop, at least; half a millisecond where memory is new.
_COPIES_AT_ONCE: Final = 8
# Under a flood of answers, this fraction (1/8) of those that wait is copied in one turn.
_COPIES_DIVISOR: Final = 8


def new_socket_reader() -> SocketReader:
    """Return the reader that needs the least CPU time on this host. Raises RuntimeError outside of
    a running event loop.
    """
    library = load_library()
    return LoopSocketReader() if library is None else NativeSocketReader(library)


class NativeSocketReader:
    """Implements SocketReader in C. TLS connections are read by the event loop instead, because
    Python holds their keys.
    """

    def __init__(self, library: Library) -> None:
        """Start the thread that reads. Raises RuntimeError outside of a running event loop. Raises
        OSError if the system has no more file descriptors or threads.
        """
        self._loop = asyncio.get_running_loop()
        self.library = library
        self.reader = library.call.bf_reader_new()
        if not self.reader:
            raise OSError("the system has no more file descriptors for reading sockets")
        self.scratch = ctypes.create_string_buffer(_PEEK_BYTES)
        self._streams: dict[int, NativeSocketStream] = {}
        self._keys = count(1)
        self._news = (StreamNews * _NEWS_AT_ONCE)()
        self._pending: deque[tuple[int, int, int]] = deque()
        self._tls_reader: LoopSocketReader | None = None
        self._uncopied: deque[NativeReads] = deque()
        self._thread = threading.Thread(
            target=library.run, args=(self.reader,), name="reader", daemon=True
        )
        self._descriptor = library.call.bf_reader_news_descriptor(self.reader)
        try:
            self._thread.start()
        except RuntimeError as error:
            library.call.bf_reader_free(self.reader)
            raise OSError(f"the thread that reads sockets cannot be started: {error}") from error
        self._loop.add_reader(self._descriptor, self._on_news)

    @property
    def cpu_s(self) -> float:
        return float(self.library.call.bf_reader_cpu_ns(self.reader)) / 1e9 if self.reader else 0.0

    def attach(
        self, sock: socket.socket, listener: StreamListener, tls: TlsStream | None
    ) -> SocketStream:
        """Begin to read a connected socket: in C, or in the event loop if the connection uses TLS.
        Raises OSError.
        """
        if tls is not None:
            self._tls_reader = self._tls_reader or LoopSocketReader()
            return self._tls_reader.attach(sock, listener, tls)
        stream = NativeSocketStream(self, sock, listener, next(self._keys))
        self._streams[stream.key] = stream
        return stream

    def remove_stream(self, key: int) -> None:
        """Forget a stream that was dropped."""
        self._streams.pop(key, None)

    @property
    def uncopied(self) -> int:
        """Return the number of answers that are still in memory of the C library."""
        return len(self._uncopied)

    def copy_later(self, taken: NativeReads) -> NativeReads:
        """Schedule the copy of an answer and return the answer. If many answers end together, the
        next requests are sent before the answers are copied.
        """
        if not self._uncopied:
            self._loop.call_later(_COPY_DELAY_S, self._copy_some)
        self._uncopied.append(taken)
        return taken

    def _copy_some(self) -> None:
        for _ in range(
            min(len(self._uncopied), max(_COPIES_AT_ONCE, len(self._uncopied) // _COPIES_DIVISOR))
        ):
            self._uncopied.popleft().copy()
        if self._uncopied:
            self._loop.call_soon(self._copy_some)

    def close(self) -> None:
        """Drop all streams, copy the answers that are not copied yet, and end the thread."""
        if self._tls_reader is not None:
            self._tls_reader.close()
        for stream in tuple(self._streams.values()):
            stream.drop()
        while self._uncopied:
            self._uncopied.popleft().copy()
        reader, self.reader = self.reader, None
        if reader:
            self._loop.remove_reader(self._descriptor)
            self.library.call.bf_reader_stop(reader)
            self._thread.join()
            self.library.call.bf_reader_free(reader)

    def _on_news(self) -> None:
        """Fetch the events of all streams from C and pass them on."""
        many = _NEWS_AT_ONCE
        while many == _NEWS_AT_ONCE and self.reader:
            many = self.library.call.bf_reader_news(self.reader, self._news, _NEWS_AT_ONCE)
            self._pending.extend((one.key, one.what, one.error) for one in self._news[:many])
            self._dispatch_news()

    def _dispatch_news(self) -> None:
        """Pass events on to their streams. C reports an event only once, so the other events are
        passed on later if a stream raises an error.
        """
        try:
            while self._pending:
                key, what, error = self._pending.popleft()
                stream = self._streams.get(key)
                if stream is not None:
                    stream.on_news(what, error)
        finally:
            if self._pending:
                self._loop.call_soon(self._dispatch_news)


class NativeSocketStream:
    """Implements SocketStream for NativeSocketReader."""

    __slots__ = (
        "_call",
        "_listener",
        "_offset",
        "_reader",
        "_scratch",
        "_socket",
        "_stream",
        "key",
    )

    def __init__(
        self, reader: NativeSocketReader, sock: socket.socket, listener: StreamListener, key: int
    ) -> None:
        """Watch the socket. Raises OSError if the system cannot watch another connection."""
        self.key = key
        self._reader = reader
        self._socket = sock
        self._listener: StreamListener = listener
        self._call = reader.library.call
        self._scratch = reader.scratch
        self._offset = 0  # bytes that the listener has read
        self._stream = self._call.bf_stream_add(reader.reader, sock.fileno(), key)
        if not self._stream:
            raise OSError("the system cannot watch another connection (epoll)")

    @property
    def size(self) -> int:
        return int(self._call.bf_stream_size(self._stream)) if self._stream else 0

    def on_news(self, what: int, error: int) -> None:
        """Call the listener for each event in the bits of `what`. `error` is the errno if the
        connection broke.
        """
        if what & END:
            self._listener.on_complete()
        elif what & LOOK:
            self._listener.on_data()
        if what & (CLOSED | BROKEN) and self._stream:
            self._listener.on_closed(OSError(error, os.strerror(error)) if what & BROKEN else None)

    def expect_answer(self, sent_ns: int, max_bytes: int) -> bool:
        self._offset = 0
        return self._stream is not None and not self._call.bf_stream_expect(
            self._stream, sent_ns, max_bytes
        )

    def read_new(self) -> bytes:
        parts, many = [], _PEEK_BYTES
        while self._stream and many == _PEEK_BYTES:
            many = self._call.bf_stream_peek(self._stream, self._offset, self._scratch, _PEEK_BYTES)
            parts.append(ctypes.string_at(self._scratch, many))
            self._offset += many
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self) -> bytes:
        self._offset = 0
        return self.read_new()

    def watch_for_end(self, left: int, rest: bytes) -> None:
        found = (
            self._call.bf_stream_watch(self._stream, self._offset + left - len(rest))
            if self._stream
            else 0
        )
        if found & END:
            self._listener.on_complete()
        elif found:
            self._listener.on_data()

    def detach_reads(self) -> DeferredReads:
        if not self._stream:
            return NO_READS
        answer = NativeAnswer()
        self._call.bf_stream_take(self._stream, ctypes.byref(answer))
        self._offset = 0
        return self._reader.copy_later(NativeReads(answer, self._reader))

    def drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream:
            self._listener = NO_LISTENER
            self._call.bf_stream_drop(stream)
            self._reader.remove_stream(self.key)
            self._socket.close()


class NativeReads:
    """Implements DeferredReads. The answer is in memory of the C library until `copy` makes a
    Python object of it. The memory then serves for another answer.
    """

    __slots__ = ("_answer", "_reader", "_reads", "count", "last_ns", "size")

    def __init__(self, answer: NativeAnswer, reader: NativeSocketReader) -> None:
        self._answer = answer
        self._reader = reader
        self._reads: RecordedReads | None = None  # None: not copied yet
        self.count = int(answer.reads)
        self.size = int(answer.size)
        self.last_ns = (
            ctypes.c_int64.from_address(answer.times + 8 * (self.count - 1)).value
            if answer.times and self.count
            else 0
        )

    def reads(self) -> RecordedReads:
        return self.copy()

    def copy(self) -> RecordedReads:
        """Copy the answer at the first call. Return the same copy at later calls, even after the
        reader was closed.
        """
        if self._reads is None:
            self._reads = _copy_reads(self._answer)
            self._reader.library.call.bf_answer_give_back(
                self._reader.reader, ctypes.byref(self._answer)
            )
        return self._reads


def _copy_reads(answer: NativeAnswer) -> RecordedReads:
    times, ends = array("q"), array("Q")
    if not (answer.size and answer.data and answer.times and answer.ends):
        return RecordedReads()
    times.frombytes(ctypes.string_at(answer.times, answer.reads * times.itemsize))
    ends.frombytes(ctypes.string_at(answer.ends, answer.reads * ends.itemsize))
    return RecordedReads(ctypes.string_at(answer.data, answer.size), times, ends)
