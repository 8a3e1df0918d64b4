"""Owns the wire that reads in C: a thread without Python's lock puts aside what arrives, and the
loop hears of what is to be decided.
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

_MOST_NEWS: Final = 64
_PEEK_BYTES: Final = 1 << 16
_SETTLE_S: Final = 0.1
# in one turn of the loop, at least: copying them takes half a millisecond where memory is new
_SETTLED_AT_ONCE: Final = 8
# and at least one of so many that wait, so that under a flood of answers no more wait than eight
# turns bring
_SETTLED_SHARE: Final = 8


def new_socket_reader() -> SocketReader:
    """The one that costs least here. Raises RuntimeError outside of a running loop."""
    found = load_library()
    return LoopSocketReader() if found is None else NativeSocketReader(found)


class NativeSocketReader:
    """See `Wire`. What comes under TLS is read by the loop, since Python has the keys."""

    def __init__(self, found: Library) -> None:
        """Raises RuntimeError outside of a running loop, OSError when the system has no more
        descriptors, or threads.
        """
        self._loop = asyncio.get_running_loop()
        self.library = found
        self.reader = found.call.bf_reader_new()
        if not self.reader:
            raise OSError("no more file descriptors for reading")
        self.scratch = ctypes.create_string_buffer(_PEEK_BYTES)
        self._lines: dict[int, NativeSocketStream] = {}
        self._keys = count(1)
        self._news = (StreamNews * _MOST_NEWS)()
        self._told: deque[tuple[int, int, int]] = deque()
        self._secure: LoopSocketReader | None = None
        self._unsettled: deque[NativeReads] = deque()
        self._thread = threading.Thread(
            target=found.run, args=(self.reader,), name="reader", daemon=True
        )
        self._descriptor = found.call.bf_reader_news_descriptor(self.reader)
        try:
            self._thread.start()
        except RuntimeError as error:
            found.call.bf_reader_free(self.reader)
            raise OSError(f"no more threads for reading: {error}") from error
        self._loop.add_reader(self._descriptor, self._on_news)

    @property
    def cpu_s(self) -> float:
        """See `Wire`."""
        return float(self.library.call.bf_reader_cpu_ns(self.reader)) / 1e9 if self.reader else 0.0

    def attach(
        self, link: socket.socket, owner: StreamListener, secure: TlsStream | None
    ) -> SocketStream:
        """See `Wire`. Raises OSError."""
        if secure is not None:
            self._secure = self._secure or LoopSocketReader()
            return self._secure.attach(link, owner, secure)
        line = NativeSocketStream(self, link, owner, next(self._keys))
        self._lines[line.key] = line
        return line

    def forget(self, key: int) -> None:
        """That line is dropped."""
        self._lines.pop(key, None)

    @property
    def unsettled(self) -> int:
        """Answers whose memory is still C's."""
        return len(self._unsettled)

    def settle_later(self, taken: NativeReads) -> NativeReads:
        """It is settled a little later: where many answers end together, the next requests are sent
        first.
        """
        if not self._unsettled:
            self._loop.call_later(_SETTLE_S, self._settle)
        self._unsettled.append(taken)
        return taken

    def _settle(self) -> None:
        for _ in range(
            min(len(self._unsettled), max(_SETTLED_AT_ONCE, len(self._unsettled) // _SETTLED_SHARE))
        ):
            self._unsettled.popleft().settle()
        if self._unsettled:
            self._loop.call_soon(self._settle)

    def close(self) -> None:
        """See `Wire`; the thread has ended afterwards."""
        if self._secure is not None:
            self._secure.close()
        for line in tuple(self._lines.values()):
            line.drop()
        while self._unsettled:
            self._unsettled.popleft().settle()
        reader, self.reader = self.reader, None
        if reader:
            self._loop.remove_reader(self._descriptor)
            self.library.call.bf_reader_stop(reader)
            self._thread.join()
            self.library.call.bf_reader_free(reader)

    def _on_news(self) -> None:
        """There is something to decide."""
        many = _MOST_NEWS
        while many == _MOST_NEWS and self.reader:
            many = self.library.call.bf_reader_news(self.reader, self._news, _MOST_NEWS)
            self._told.extend((one.key, one.what, one.error) for one in self._news[:many])
            self._dispatch_news()

    def _dispatch_news(self) -> None:
        """To the lines, which C tells once: an error in one keeps nothing from the others."""
        try:
            while self._told:
                key, what, error = self._told.popleft()
                line = self._lines.get(key)
                if line is not None:
                    line.on_news(what, error)
        finally:
            if self._told:
                self._loop.call_soon(self._dispatch_news)


class NativeSocketStream:
    """See `Line`."""

    __slots__ = ("_call", "_link", "_looked", "_owner", "_scratch", "_stream", "_wire", "key")

    def __init__(
        self, wire: NativeSocketReader, link: socket.socket, owner: StreamListener, key: int
    ) -> None:
        """Raises OSError."""
        self.key = key
        self._wire = wire
        self._link = link
        self._owner: StreamListener = owner
        self._call = wire.library.call
        self._scratch = wire.scratch
        self._looked = 0  # bytes
        self._stream = self._call.bf_stream_add(wire.reader, link.fileno(), key)
        if not self._stream:
            raise OSError("the system listens to no more connections")

    @property
    def size(self) -> int:
        """See `Line`."""
        return int(self._call.bf_stream_size(self._stream)) if self._stream else 0

    def on_news(self, what: int, error: int) -> None:
        """What its wire was told of it."""
        if what & END:
            self._owner.on_complete()
        elif what & LOOK:
            self._owner.on_data()
        if what & (CLOSED | BROKEN) and self._stream:
            self._owner.on_closed(OSError(error, os.strerror(error)) if what & BROKEN else None)

    def expect_answer(self, sent_ns: int, most: int) -> bool:
        """See `Line`."""
        self._looked = 0
        return self._stream is not None and not self._call.bf_stream_expect(
            self._stream, sent_ns, most
        )

    def read_new(self) -> bytes:
        """See `Line`."""
        parts, many = [], _PEEK_BYTES
        while self._stream and many == _PEEK_BYTES:
            many = self._call.bf_stream_peek(self._stream, self._looked, self._scratch, _PEEK_BYTES)
            parts.append(ctypes.string_at(self._scratch, many))
            self._looked += many
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self) -> bytes:
        """See `Line`."""
        self._looked = 0
        return self.read_new()

    def watch_for_end(self, left: int, rest: bytes) -> None:
        """See `Line`."""
        found = (
            self._call.bf_stream_watch(self._stream, self._looked + left - len(rest))
            if self._stream
            else 0
        )
        if found & END:
            self._owner.on_complete()
        elif found:
            self._owner.on_data()

    def detach_reads(self) -> DeferredReads:
        """See `Line`."""
        if not self._stream:
            return NO_READS
        answer = NativeAnswer()
        self._call.bf_stream_take(self._stream, ctypes.byref(answer))
        self._looked = 0
        return self._wire.settle_later(NativeReads(answer, self._wire))

    def drop(self) -> None:
        """See `Line`."""
        stream, self._stream = self._stream, None
        if stream:
            self._owner = NO_LISTENER
            self._call.bf_stream_drop(stream)
            self._wire.forget(self.key)
            self._link.close()


class NativeReads:
    """See `Taken`. The memory is C's until it is settled, which copies it into Python's and gives C
    its own for the next answer.
    """

    __slots__ = ("_answer", "_reads", "_wire", "count", "last_ns", "size")

    def __init__(self, answer: NativeAnswer, wire: NativeSocketReader) -> None:
        self._answer = answer
        self._wire = wire
        self._reads: RecordedReads | None = None  # none: not settled
        self.count = int(answer.reads)
        self.size = int(answer.size)
        self.last_ns = (
            ctypes.c_int64.from_address(answer.times + 8 * (self.count - 1)).value
            if answer.times and self.count
            else 0
        )

    def reads(self) -> RecordedReads:
        """See `Taken`."""
        return self.settle()

    def settle(self) -> RecordedReads:
        """Harmless when it is settled; its wire, which does it before it closes, is needed no more
        then.
        """
        if self._reads is None:
            self._reads = _copy_reads(self._answer)
            self._wire.library.call.bf_answer_give_back(
                self._wire.reader, ctypes.byref(self._answer)
            )
        return self._reads


def _copy_reads(answer: NativeAnswer) -> RecordedReads:
    times, ends = array("q"), array("Q")
    if not (answer.size and answer.data and answer.times and answer.ends):
        return RecordedReads()
    times.frombytes(ctypes.string_at(answer.times, answer.reads * times.itemsize))
    ends.frombytes(ctypes.string_at(answer.ends, answer.reads * ends.itemsize))
    return RecordedReads(ctypes.string_at(answer.data, answer.size), times, ends)
