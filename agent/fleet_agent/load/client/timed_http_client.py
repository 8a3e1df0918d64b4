"""Sends the requests of the load and records times: when each request was sent, and when each part
of its answer arrived. It parses no content during a run.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final
from urllib.parse import urlsplit

from fleet_agent.load.client import http_framing
from fleet_agent.load.client.native_reader import new_socket_reader
from fleet_agent.load.client.received import NO_READS, DeferredReads, RecordedReads
from fleet_agent.load.client.request_record import ErrorName
from fleet_agent.load.client.socket_reader import SocketReader
from fleet_agent.load.client.tls_stream import TlsStream

# Servers close idle connections (uvicorn after 5 s): a connection idle for longer than this is not
# reused.
KEEP_IDLE_S: Final = 2.0
CONNECT_TIMEOUT_S: Final = 10.0
# enough for a million tokens with all that SGLang writes around them
MAX_ANSWER_BYTES: Final = 512 << 20


@dataclass(slots=True)
class Exchange:
    """Holds one request and its undecoded answer. Times are perf_counter_ns. `failure` is an
    ErrorName, or empty.
    """

    sent_ns: int
    deferred_reads: DeferredReads = NO_READS
    closed: bool = False
    failure: str = ""
    detail: str = ""

    @property
    def reads(self) -> RecordedReads:
        """Return the recorded reads of the answer, copied to Python objects."""
        return self.deferred_reads.reads()


class LoadConnection:
    """Sends requests on one connection, one at a time. As a StreamListener it decides when an
    answer has ended.
    """

    __slots__ = (
        "_can_watch",
        "_done",
        "_exchange",
        "_framing",
        "_is_watching",
        "_socket",
        "_stream",
        "_tls",
        "_unsent",
        "idle_since_ns",
        "lost",
    )

    def __init__(self, reader: SocketReader, sock: socket.socket, tls: TlsStream | None) -> None:
        self.lost = False
        self.idle_since_ns = 0
        self._socket = sock
        self._tls = tls
        self._done: asyncio.Future[None] | None = None  # of the request in flight
        self._exchange = Exchange(0)
        self._framing = http_framing.HttpFraming()
        self._can_watch = True  # the stream may be asked to watch for the end
        self._is_watching = False  # it was asked
        self._unsent: asyncio.Task[None] | None = None
        self._stream = reader.attach(sock, self, tls)

    async def exchange(self, request: bytes, timeout_s: float) -> Exchange:
        """Send `request` and wait for the end of its answer, for at most `timeout_s`. A failure is
        recorded in the result. Only CancelledError is raised.
        """
        loop = asyncio.get_running_loop()
        self._framing, self._can_watch, self._is_watching = http_framing.HttpFraming(), True, False
        exchange = self._exchange = Exchange(perf_counter_ns())
        done = self._done = loop.create_future()
        timer = loop.call_later(timeout_s, self._expire, timeout_s)
        if self.lost or not self._stream.expect_answer(exchange.sent_ns, MAX_ANSWER_BYTES):
            self._fail(ErrorName.RESET, "the connection was lost before the request was sent")
            self.abort()
            self._finish()
        else:
            data = request if self._tls is None else self._tls.encrypt(request)
            exchange.sent_ns = perf_counter_ns()
            self._send(data)
        try:
            await done
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._done = None
            self._exchange = Exchange(0)  # the caller owns the finished one
            timer.cancel()
        self.idle_since_ns = perf_counter_ns()
        return exchange

    def cancel(self) -> None:
        """End the request in flight, and record it as cancelled."""
        self._fail(ErrorName.CANCELLED, "cancelled")
        self._give_up()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None
        self.lost = True
        self._stream.drop()

    def on_data(self) -> None:
        """Handle the head of an answer, or new data of an answer that the stream does not watch. If
        the stream could not find the end, parse the whole answer.
        """
        if self._done is None or self._done.done():
            self.abort()  # no request is in flight
            return
        if self._stream.size > MAX_ANSWER_BYTES:
            limit_mib = MAX_ANSWER_BYTES >> 20
            self._fail(ErrorName.MALFORMED, f"the answer did not end within {limit_mib} MiB")
            self._give_up()
            return
        if self._is_watching:
            self._framing, self._can_watch, self._is_watching = (
                http_framing.HttpFraming(),
                False,
                False,
            )
            self._framing.feed(self._stream.read_all())
        elif self._watch(self._stream.read_new()):
            return
        if self._framing.state in (http_framing.ENDED, http_framing.BROKEN):
            self.on_complete()

    def _watch(self, data: bytes) -> bool:
        """Parse new data. Return True if the stream watches for the end from now on. The stream
        then also handles what follows the head.
        """
        framing = self._framing
        if framing.state == http_framing.HEAD and (end := data.find(b"\r\n\r\n")) >= 0:
            framing.feed(data[: end + 4])
            data = data[end + 4 :]
        ahead = framing.next_chunk() if self._can_watch else None
        if ahead is None:
            framing.feed(data)
            data, ahead = b"", framing.next_chunk() if self._can_watch else None
        if ahead is not None:
            self._is_watching = True
            self._stream.watch_for_end(ahead[0], ahead[1] + data)
        return ahead is not None

    def on_complete(self) -> None:
        """Finish the request, because its answer is complete or can never be complete. The
        connection is kept only if the server keeps it open and has read the whole request.
        """
        keeps = self._framing.keep_alive and self._unsent is None
        self._finish()
        if not keeps:
            self.abort()

    def on_closed(self, error: OSError | None) -> None:
        """Finish the request, because the server closed the connection or the connection broke."""
        if self._done is not None and not self._done.done():
            self._exchange.closed = True
            if error is not None:
                self._fail(ErrorName.RESET, str(error))
            elif not self._stream.size:
                self._fail(
                    ErrorName.RESET, "the server closed the connection without sending an answer"
                )
        self._give_up()

    def _send(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.on_closed(error)
            return
        if sent < len(data):
            self._unsent = asyncio.get_running_loop().create_task(self._send_rest(data[sent:]))

    async def _send_rest(self, data: bytes) -> None:
        """Send the bytes that did not fit into the socket's buffer. This happens if the prompt is
        very long or the server does not read.
        """
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            self.on_closed(error)
        self._unsent = None

    def _expire(self, timeout_s: float) -> None:
        self._store_reads()
        last_ns = self._exchange.deferred_reads.last_ns
        silent_s = (perf_counter_ns() - last_ns) / 1e9 if last_ns else 0.0
        if silent_s >= timeout_s / 2:
            self._fail(
                ErrorName.STALLED,
                f"the answer began and then stalled for {silent_s:.1f} s; "
                f"the request's timeout is {timeout_s:g} s",
            )
        else:
            self._fail(ErrorName.TIMEOUT, f"the answer was not complete after {timeout_s:g} s")
        self._give_up()

    def _fail(self, kind: str, detail: str) -> None:
        if not self._exchange.failure:
            self._exchange.failure, self._exchange.detail = kind, detail

    def _give_up(self) -> None:
        self._finish()
        self.abort()

    def _finish(self) -> None:
        """End the request in flight. The part of the answer that has arrived stays in
        its Exchange.
        """
        if self._done is not None and not self._done.done():
            self._store_reads()
            self._done.set_result(None)

    def _store_reads(self) -> None:
        taken = self._stream.detach_reads()
        if taken.count:
            self._exchange.deferred_reads = taken


class Endpoint:
    """Holds the address of one server and the idle connections to it. Use it on one event loop
    only.
    """

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None = None,
        new_reader: Callable[[], SocketReader] = new_socket_reader,
    ) -> None:
        """Prepare for requests to `url`, without connecting.

        `tls`: the TLS context for an https server (default: the trust store of this host).
        `new_reader`: makes the reader of the sockets.

        Raises ValueError unless `url` is http(s)://host[:port][/path].
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the url {url!r} must be http:// or https:// with a host")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._idle: list[LoadConnection] = []
        self._new_reader = new_reader
        self._reader: SocketReader | None = None
        self._addresses: list[tuple[int, Any]] = []  # family and address, after the first lookup

    @property
    def idle(self) -> int:
        """Return the number of idle connections that are still open."""
        return sum(not connection.lost for connection in self._idle)

    @property
    def reader(self) -> SocketReader:
        """Return the reader of the sockets, which is made at the first use. Raises RuntimeError
        outside of a running event loop.
        """
        if self._reader is None:
            self._reader = self._new_reader()
        return self._reader

    async def connect(self, count: int) -> None:
        """Open connections until `count` are idle. If the server refuses, nothing is raised: each
        request will record its own failure.
        """
        with suppress(OSError, TimeoutError):
            while self.idle < count:
                self._idle.append(await self._open())

    async def exchange(
        self,
        request: bytes,
        timeout_s: float,
        on_connection: Callable[[LoadConnection], None] | None = None,
    ) -> Exchange:
        """Send a request on an idle connection, or on a new connection. A failure is recorded in
        the result and never raised.

        `on_connection` is called with the connection before the request is sent.
        """
        try:
            connection = self._reuse_connection() or await self._open()
        except (OSError, TimeoutError) as error:
            return Exchange(
                perf_counter_ns(),
                failure=ErrorName.CONNECT,
                detail=str(error)
                or f"the server accepted no connection within {CONNECT_TIMEOUT_S:g} s",
            )
        if on_connection is not None:
            on_connection(connection)
        exchange = await connection.exchange(request, timeout_s)
        if not connection.lost:
            self._idle.append(connection)
        return exchange

    def close(self) -> None:
        """Close the idle connections and the reader."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _reuse_connection(self) -> LoadConnection | None:
        now = perf_counter_ns()
        while self._idle:
            connection = self._idle.pop()
            if connection.lost:
                continue
            if not connection.idle_since_ns or now - connection.idle_since_ns < KEEP_IDLE_S * 1e9:
                return connection
            connection.abort()
        return None

    async def _open(self) -> LoadConnection:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            sock = await self._connect()
            with ExitStack() as cleanup:
                cleanup.callback(sock.close)
                tls = None if self._tls is None else TlsStream(self._tls, self._host)
                if tls is not None:
                    await tls.handshake(sock)
                connection = LoadConnection(self.reader, sock, tls)
                cleanup.pop_all()
            return connection

    async def _connect(self) -> socket.socket:
        """Return a socket that is connected to the first address of the host that accepts. Raises
        OSError.
        """
        loop = asyncio.get_running_loop()
        if not self._addresses:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = [(family, address) for family, _, _, _, address in found]
        last_error = OSError(f"{self._host} has no address")
        for family, address in self._addresses:
            with ExitStack() as cleanup:
                sock = cleanup.enter_context(
                    socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                )
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    await loop.sock_connect(sock, address)
                except OSError as error:
                    last_error = error
                    continue
                cleanup.pop_all()
                return sock
        raise last_error
