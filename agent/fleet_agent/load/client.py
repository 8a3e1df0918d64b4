"""Owns the connections of the load: sends prepared bytes, records (time, bytes) of every read; parses no content while it measures."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final
from urllib.parse import urlsplit

from fleet_agent.load import framing
from fleet_agent.load.records import ErrorName
from fleet_agent.load.secure import Secure
from fleet_agent.load.wire import READ_BYTES, ROOM, Wire

LOOK_BYTES: Final = 1 << 13
KEEP_IDLE_S: Final = 2.0  # servers close idle connections (uvicorn after 5 s): one that idled longer than this is not used again
CONNECT_TIMEOUT_S: Final = 10.0
MOST_BYTES: Final = 512 << 20  # of one answer: a million tokens with all that SGLang writes around them


@dataclass(slots=True)
class Exchange:
    """One request on the wire, raw. Times are perf_counter_ns; `failure` is an ErrorName or empty."""

    sent_ns: int
    reads: list[tuple[int, bytes]]
    closed: bool = False
    failure: str = ""
    detail: str = ""
    size: int = 0  # bytes of all reads


class Connection:
    """One connection, one request at a time. `_read` is the hot path: a read, an append and one comparison."""

    __slots__ = ("_arrival_ns", "_at_ns", "_done", "_ending", "_exchange", "_frame", "_lazy", "_link", "_look_at", "_reads", "_receive",
                 "_remove", "_secure", "_size", "_taken", "_unsent", "idle_since_ns", "lost")  # fmt: skip

    def __init__(self, wire: Wire, link: socket.socket, secure: Secure | None) -> None:
        self.lost = False
        self.idle_since_ns = 0
        self._arrival_ns = wire.arrival_ns
        self._at_ns = 0  # of the newest read, or of the sending
        self._link = link
        self._secure = secure
        self._done: asyncio.Future[None] | None = None  # of the request in flight
        self._exchange = Exchange(0, [])
        self._reads: list[tuple[int, bytes]] = []
        self._frame = framing.Framing()
        self._receive = link.recvmsg
        self._size = 0
        self._look_at = 0
        self._taken = 0
        self._lazy = False
        self._ending: framing.Ending | None = None
        self._unsent: asyncio.Task[None] | None = None
        self._remove = wire.add(link, self._read)

    def _read(self) -> None:
        try:
            data, said, _, _ = self._receive(READ_BYTES, ROOM)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(error)
            return
        self._at_ns = at_ns = self._arrival_ns(said[0][2], self._at_ns) if said else perf_counter_ns()
        if not data or self._done is None or self._secure is not None:
            self._came(at_ns, data)
            return
        self._reads.append((at_ns, data))
        self._size += (size := len(data))
        if not self._lazy or size < 4 or data.endswith(b"\r\n\r\n") or self._size > self._look_at:
            self._look()

    def _came(self, at_ns: int, data: bytes) -> None:
        """What is no plain answer: the peer's end, bytes that nobody asked for, or bytes under TLS, a piece of a record or whole ones."""
        if not data:
            self._ended()
            return
        ended = False
        if self._secure is not None:
            try:
                data, ended = self._secure.opened(data)
            except ssl.SSLError as error:
                self._broke(error)
                return
        if data and self._done is None:
            self.abort()
        elif data:
            self._reads.append((at_ns, data))
            self._size += len(data)
            self._look()
        if ended:
            self._ended()

    def _broke(self, error: OSError) -> None:
        if self._done is not None:
            self._fail(ErrorName.RESET, str(error))
        self._ended()

    async def exchange(self, request: bytes, timeout_s: float) -> Exchange:
        """Send `request` and wait for the end of its answer, at most `timeout_s`. Raises nothing but CancelledError."""
        loop = asyncio.get_running_loop()
        self._frame, self._size, self._taken, self._look_at = framing.Framing(), 0, 0, 0
        self._lazy, self._ending = False, None
        self._reads = []
        exchange = self._exchange = Exchange(0, self._reads)
        done = self._done = loop.create_future()
        timer = loop.call_later(timeout_s, self._expire, timeout_s)
        exchange.sent_ns = self._at_ns = perf_counter_ns()
        if self.lost:
            self._fail(ErrorName.RESET, "the connection was lost before the request was sent")
            self._finish()
        else:
            self._send(request if self._secure is None else self._secure.sealed(request))
        try:
            await done
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._done = None
            timer.cancel()
        exchange.size = self._size
        self.idle_since_ns = perf_counter_ns()
        return exchange

    def cancel(self) -> None:
        """End the request in flight as cancelled by us."""
        self._fail(ErrorName.CANCELLED, "cancelled")
        self.abort()
        self._finish()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None
        if not self.lost:
            self.lost = True
            self._remove()

    def _send(self, data: bytes) -> None:
        try:
            sent = self._link.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broke(error)
            return
        if sent < len(data):
            self._unsent = asyncio.get_running_loop().create_task(self._send_rest(data[sent:]))

    async def _send_rest(self, data: bytes) -> None:
        """What did not fit into the socket's buffer: a very long prompt, or a server that does not read."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._link, data)
        except OSError as error:
            self._broke(error)
        self._unsent = None

    def _ended(self) -> None:
        """The peer has ended the connection."""
        if self._done is not None:
            self._exchange.closed = True
            if not self._reads:
                self._fail(ErrorName.RESET, "the server closed the connection without an answer")
        self.abort()
        self._finish()

    def _look(self) -> None:
        """At the head of an answer, where a chunked one may have ended (a read that ends in an empty line, or is tiny), and now and then.

        What was looked at needs no look at the end, when the next request of the slot is due.
        """
        if self._size > MOST_BYTES:
            self._fail(ErrorName.MALFORMED, f"no end after {MOST_BYTES >> 20} MiB")
            self._over(keep_alive=False)
            return
        new, self._taken, self._look_at = self._reads[self._taken :], len(self._reads), self._size + LOOK_BYTES
        if self._ending is not None:
            found = self._ending.look(new)
            if found == framing.GOES_ON:
                return
            if found == framing.AT_END:
                self._over(keep_alive=self._frame.keep_alive)
                return
            self._ending, self._lazy, new = None, False, self._reads  # only the whole tells, from here on
            self._frame = framing.Framing()
        is_head = self._frame.state == framing.HEAD
        self._frame.feed(b"".join(data for _, data in new))
        if self._frame.state in (framing.ENDED, framing.BROKEN):
            self._over(keep_alive=self._frame.keep_alive)
        elif is_head and new is not self._reads:
            self._ending = self._frame.ending()
            self._lazy = self._ending is not None

    def _over(self, *, keep_alive: bool) -> None:
        """The answer is complete, or will never be. A server may have answered before it read all of the request."""
        if not keep_alive or self._unsent is not None:
            self.abort()
        self._finish()

    def _expire(self, timeout_s: float) -> None:
        silent_s = (perf_counter_ns() - self._reads[-1][0]) / 1e9 if self._reads else 0.0
        if silent_s >= timeout_s / 2:
            self._fail(ErrorName.STALLED, f"begun, then silent for {silent_s:.1f} s; the request's limit is {timeout_s:g} s")
        else:
            self._fail(ErrorName.TIMEOUT, f"not complete after {timeout_s:g} s")
        self.abort()
        self._finish()

    def _fail(self, kind: str, detail: str) -> None:
        if not self._exchange.failure:
            self._exchange.failure, self._exchange.detail = kind, detail

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class Endpoint:
    """One server's address and the connections to it that are free. Use it on one event loop."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: how to meet an https server, default as this host trusts. Raises ValueError unless `url` is http(s)://host[:port][/path]."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r} is not http:// or https:// with a host")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._free: list[Connection] = []
        self._wire: Wire | None = None
        self._places: list[tuple[int, Any]] = []  # family and address, once looked up

    @property
    def idle(self) -> int:
        """Connections that are free and not lost."""
        return sum(not connection.lost for connection in self._free)

    @property
    def wire(self) -> Wire:
        """Its sockets. Raises RuntimeError outside of a running loop."""
        if self._wire is None:
            self._wire = Wire()
        return self._wire

    async def connect(self, count: int) -> None:
        """Have up to `count` free connections before the first request; a server that refuses is met again when sending."""
        with suppress(OSError, TimeoutError):
            while self.idle < count:
                self._free.append(await self._open())

    async def exchange(self, request: bytes, timeout_s: float, flying: Callable[[Connection], None] | None = None) -> Exchange:
        """Send on a free connection, or on a new one. A failure is in the result, never raised. `flying` is told the connection."""
        try:
            connection = self._take() or await self._open()
        except (OSError, TimeoutError) as error:
            return Exchange(perf_counter_ns(), [], failure=ErrorName.CONNECT, detail=str(error) or "no connection in time")
        if flying is not None:
            flying(connection)
        exchange = await connection.exchange(request, timeout_s)
        if not connection.lost:
            self._free.append(connection)
        return exchange

    def close(self) -> None:
        """Drop the free connections."""
        for connection in self._free:
            connection.abort()
        self._free.clear()
        self._wire = None

    def _take(self) -> Connection | None:
        now = perf_counter_ns()
        while self._free:
            connection = self._free.pop()
            if connection.lost:
                continue
            if not connection.idle_since_ns or now - connection.idle_since_ns < KEEP_IDLE_S * 1e9:
                return connection
            connection.abort()
        return None

    async def _open(self) -> Connection:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            link = await self._link()
            try:
                secure = None if self._tls is None else Secure(self._tls, self._host)
                if secure is not None:
                    await secure.greet(link)
            except BaseException:
                link.close()
                raise
        return Connection(self.wire, link, secure)

    async def _link(self) -> socket.socket:
        """A connected socket, to the first of the host's addresses that takes it. Raises OSError."""
        loop = asyncio.get_running_loop()
        if not self._places:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._places = [(family, address) for family, _, _, _, address in found]
        trouble = OSError(f"{self._host} has no address")
        for family, address in self._places:
            link = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(link, address)
            except OSError as error:
                link.close()
                trouble = error
            except BaseException:
                link.close()
                raise
            else:
                return link
        raise trouble
