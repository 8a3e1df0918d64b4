"""Answers requests over loopback with prepared answers, so that a load client can measure its own
cost.

Server and client take turns in one thread. The server counts its own CPU time; all other CPU time
of the thread is the client's. A server in another thread would make the client wait for Python's
lock. A server in another process would take longer to start than the calibration may take.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

SHORT_PATH: Final = "/short"  # an answer of one token, in one write
LONG_PATH: Final = "/long"  # a streamed answer, one event of one token per turn
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_READ_BYTES: Final = 1 << 16


class NullServer:
    """Listens from its construction until it is closed, and answers requests while `serve` runs. An
    answer to `LONG_PATH` has `events` events.

    Raises OSError if it cannot listen on loopback.
    """

    def __init__(self, events: int) -> None:
        self.cpu_s = 0.0  # CPU seconds that the server used so far
        self._pieces = _long_pieces(events)
        self._short = _HEAD + _chunk(_delta("a")) + b"".join(_tail(1))
        self._connections: dict[int, socket.socket] = {}
        self._streams: dict[int, int] = {}  # by connection: number of written pieces
        self._poll = select.epoll()
        try:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        except OSError:
            self._poll.close()
            raise
        self._listener.setblocking(False)
        self._poll.register(self._listener.fileno(), select.EPOLLIN)

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> NullServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in (self._listener, *self._connections.values()):
            connection.close()
        self._poll.close()

    async def serve(self) -> None:
        """Answer requests in turns with the other tasks of the loop, until cancelled."""
        while True:
            before_s = time.thread_time()
            for number, _ in self._poll.poll(0):
                if number == self._listener.fileno():
                    self._accept()
                else:
                    self._read(number)
            self._write_turn()
            self.cpu_s += time.thread_time() - before_s
            # the loop notices what was written in the first of these turns; its reader runs in the
            # second
            for _ in range(2):
                await asyncio.sleep(0)

    def _accept(self) -> None:
        # Ends when no connection is waiting. If there are no file descriptors left, the client gets
        # no answer and reports that.
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections[connection.fileno()] = connection
                self._poll.register(connection.fileno(), select.EPOLLIN)

    def _read(self, number: int) -> None:
        connection = self._connections.get(number)
        if connection is None:  # dropped earlier in the same poll
            return
        try:
            request = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if not request:
            self._drop(number)
        elif request.startswith(f"POST {LONG_PATH} ".encode()):
            self._streams[number] = 0
        else:
            self._write(number, self._short)

    def _write_turn(self) -> None:
        for number, written in tuple(self._streams.items()):
            self._streams[number] = written + 1
            if written + 1 == len(self._pieces):
                del self._streams[number]
            self._write(number, self._pieces[written])

    def _write(self, number: int, data: bytes) -> None:
        """Send the bytes to a client. They are far smaller than the buffer of the socket: if they
        do not fit, the client is gone.
        """
        try:
            is_sent = self._connections[number].send(data) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._streams.pop(number, None)
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._poll.unregister(number)
            connection.close()


def _long_pieces(events: int) -> Sequence[bytes]:
    """Return the bytes that are written in each turn: first the head with one event, then one event
    per turn, last the end of the answer.
    """
    pieces = [_chunk(_delta(" word")) for _ in range(events)]
    pieces[0] = _HEAD + pieces[0]
    return [*pieces, b"".join(_tail(events))]


def _tail(tokens: int) -> Sequence[bytes]:
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": tokens,
        "total_tokens": 20 + tokens,
        "prompt_tokens_details": None,
    }
    ends = (
        _delta("", "length"),
        _event({**_COMMON, "choices": [], "usage": usage}),
        b"data: [DONE]\n\n",
    )
    return [*map(_chunk, ends), b"0\r\n\r\n"]


_COMMON: Final = {"id": "0" * 32, "object": "chat.completion.chunk", "created": 1, "model": "null"}


def _delta(text: str, finish: str | None = None) -> bytes:
    """Return a chat event in the format of SGLang 0.5.23."""
    delta = {"role": None, "content": text, "reasoning_content": None, "tool_calls": None}
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": finish,
        "matched_stop": None,
    }
    return _event({**_COMMON, "choices": [choice], "usage": None})


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)
