"""Serves Prometheus metrics over HTTP, on an address that anybody may reach.

So it bounds what a stranger can take: connections, bytes of a request, and seconds from the first
byte to the last. One thread serves all connections; when there are too many, the oldest is closed.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from http.client import HTTPException, parse_headers

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from fleet_protos.errors import Conflict

_MAX_CONNECTIONS = 64
_MAX_REQUEST_BYTES = 16 << 10
_CONNECTION_S = 5.0  # from its beginning to the last byte of the answer
_BACKLOG = 256


def serve_metrics(
    registry: CollectorRegistry, port: int, address: str = "127.0.0.1"
) -> Callable[[], None]:
    """Answer `GET /metrics` on a separate thread and return a function that stops it. Raises
    Conflict if the port is taken.
    """
    loop = asyncio.new_event_loop()
    connections: dict[_Connection, None] = {}  # the oldest first
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="metrics")
    thread.start()

    async def listen() -> asyncio.Server:
        return await loop.create_server(
            lambda: _Connection(registry, connections), address, port, backlog=_BACKLOG
        )

    def end_loop() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    try:
        server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    except OSError as error:
        end_loop()
        raise Conflict(
            f"cannot serve metrics on {address}:{port}: {error.strerror}",
            "choose another --metrics-port",
        ) from error

    async def close() -> None:
        server.close()
        for connection in tuple(connections):
            connection.abort()
        await asyncio.sleep(0)  # the transports close

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
        end_loop()

    return stop


class _Connection(asyncio.Protocol):
    """One connection: it reads one request, answers it and closes."""

    def __init__(self, registry: CollectorRegistry, connections: dict[_Connection, None]) -> None:
        self._registry = registry
        self._connections = connections
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; close the oldest one if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(_CONNECTION_S, transport.abort)
        if len(self._connections) >= _MAX_CONNECTIONS:
            next(iter(self._connections)).abort()
        self._connections[self] = None

    def data_received(self, data: bytes) -> None:
        """Answer once the request's headers are complete."""
        if self._transport.is_closing():
            return
        self._received += data
        head, end, _ = self._received.partition(b"\r\n\r\n")
        if end:
            self._transport.write(_answer(head, self._registry))
            self._transport.close()  # after the last byte
        elif len(self._received) > _MAX_REQUEST_BYTES:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Unregister the connection."""
        self._deadline.cancel()
        self._connections.pop(self, None)

    def abort(self) -> None:
        """Close the connection at once. It no longer counts."""
        self._connections.pop(self, None)
        self._transport.abort()


def _answer(head: bytes, registry: CollectorRegistry) -> bytes:
    """Return the response to a request with this head."""
    line, _, rest = head.partition(b"\r\n")
    method, _, target = line.partition(b" ")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "text/plain", b"use GET /metrics\n")
    if target.partition(b" ")[0].partition(b"?")[0] not in (b"/", b"/metrics"):
        return _response("404 Not Found", "text/plain", b"see /metrics\n")
    try:
        accept = parse_headers(io.BytesIO(rest + b"\r\n\r\n")).get("Accept", "")
    except HTTPException:
        return _response("400 Bad Request", "text/plain", b"the headers cannot be read\n")
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    return _response("200 OK", content_type, body, with_body=method == b"GET")


def _response(status: str, content_type: str, body: bytes, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
