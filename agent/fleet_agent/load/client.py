"""Owns the sockets of the load: sends prepared bytes, records (time, bytes) of every read; parses no content while it measures."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final, cast
from urllib.parse import urlsplit

from fleet_agent.load import framing
from fleet_agent.load.records import ErrorName

KEEP_IDLE_S: Final = 2.0  # servers close idle connections (uvicorn after 5 s): one that idled longer than this is not used again
CONNECT_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class Exchange:
    """One request on the wire, raw. Times are perf_counter_ns; `failure` is an ErrorName or empty."""

    sent_ns: int
    reads: list[tuple[int, bytes]]
    closed: bool = False
    failure: str = ""
    detail: str = ""


class Connection(asyncio.Protocol):
    """One connection, one request at a time. `data_received` is the hot path: a timestamp, an append and one comparison."""

    __slots__ = ("_done", "_exchange", "_frame", "_lazy", "_reads", "_taken", "_transport", "idle_since_ns", "lost")

    def __init__(self) -> None:
        self.lost = False
        self.idle_since_ns = 0
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._exchange = Exchange(0, [])
        self._reads: list[tuple[int, bytes]] = self._exchange.reads
        self._frame = framing.Framing()
        self._taken = 0
        self._lazy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's call."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own transports are no subclass

    def data_received(self, data: bytes) -> None:
        """Asyncio's call. In a chunked answer only a read that may be the last (it ends in an empty line, or is tiny) is looked at."""
        self._reads.append((perf_counter_ns(), data))
        if not self._lazy or data.endswith(b"\r\n\r\n") or len(data) < 4:
            self._look()

    def eof_received(self) -> bool:
        """Asyncio's call: closing is what follows."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's call."""
        self.lost = True
        self._exchange.closed = True
        if exc is not None or not self._reads:
            self._fail(ErrorName.RESET, str(exc or "the server closed the connection without an answer"))
        self._finish()

    async def exchange(self, request: bytes, timeout_s: float) -> Exchange:
        """Send `request` and wait for the end of its answer, at most `timeout_s`. Raises nothing but CancelledError."""
        loop = asyncio.get_running_loop()
        self._frame, self._taken, self._lazy = framing.Framing(), 0, False
        self._exchange = Exchange(0, [])
        self._reads = self._exchange.reads
        self._done = loop.create_future()
        timer = loop.call_later(timeout_s, self._expire, timeout_s)
        self._exchange.sent_ns = perf_counter_ns()
        if self._transport is None or self.lost:
            self._fail(ErrorName.RESET, "the connection was lost before the request was sent")
            self._finish()
        else:
            self._transport.write(request)
        try:
            await self._done
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()
        self.idle_since_ns = perf_counter_ns()
        return self._exchange

    def cancel(self) -> None:
        """End the request in flight as cancelled by us."""
        self._fail(ErrorName.CANCELLED, "cancelled")
        self.abort()
        self._finish()

    def abort(self) -> None:
        """Drop the connection now."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        new = b"".join(data for _, data in self._reads[self._taken :])
        self._taken = len(self._reads)
        self._frame.feed(new)
        self._lazy = self._frame.state == framing.CHUNKED
        if self._frame.state in (framing.ENDED, framing.BROKEN):
            if not self._frame.keep_alive:
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
    """One server's address and the connections to it that are free."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: how to meet an https server, default as this host trusts. Raises ValueError unless `url` is http(s)://host[:port][/path]."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r} is not http:// or https:// with a host")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._free: list[Connection] = []

    @property
    def idle(self) -> int:
        """Connections that are free and not lost."""
        return sum(not connection.lost for connection in self._free)

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
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        return connection
