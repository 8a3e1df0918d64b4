"""Serves HTTP/1.1 on a raw connection: parses requests, and writes responses whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

MAX_HEADER_BYTES = 65536
MAX_BODY_BYTES = 64 * 1024 * 1024
REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Content Too Large", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Holds one request with its whole body. `target` is the path with its query."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    peer: str

    @property
    def path(self) -> str:
        """Return the path without the query."""
        return self.target.partition("?")[0]


class BadRequest(Exception):
    """Reports that the received bytes are not a valid HTTP request. It holds the status and the
    text of the response.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpExchange:
    """Sends the response to one request. Once the client has disconnected, its methods send
    nothing.
    """

    def __init__(self, connection: HttpConnection, request: HttpRequest, *, keep: bool) -> None:
        self.request = request
        self.on_lost: Callable[[], None] | None = None
        self._connection = connection
        self._keep = keep

    def send(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        """Send a whole response."""
        fields = f"content-length: {len(body)}\r\n"
        if body:
            fields += f"content-type: {content_type}\r\n"
        content = b"" if self.request.method == "HEAD" else body
        self._connection.write(self._head(status, fields) + content)
        self._end(status)

    def start_stream(self) -> None:
        """Send the header of an event stream. The caller then sends its frames."""
        fields = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        self._connection.write(self._head(200, fields))

    def write_frames(self, frames: bytes) -> None:
        """Send one or more chunks that `http_chunk` made, in one write."""
        self._connection.write(frames)

    def end_stream(self) -> None:
        """End the event stream."""
        self._connection.write(b"0\r\n\r\n")
        self._end(200)

    def _head(self, status: int, fields: str) -> bytes:
        close = "" if self._keep else "connection: close\r\n"
        status_line = f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n"
        return f"{status_line}server: benchfleet-simulated\r\n{close}{fields}\r\n".encode("latin-1")

    def _end(self, status: int) -> None:
        self.on_lost = None
        self._connection.on_replied(self.request, status, keep=self._keep)


def http_chunk(content: bytes) -> bytes:
    """Return `content` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)


class HttpConnection(asyncio.Protocol):
    """Serves the connection of one client. Requests are answered in order, one at a time.

    `serve` is called with each request. `log` is called with each request and the status of its
    response.
    """

    def __init__(
        self, serve: Callable[[HttpExchange], None], log: Callable[[HttpRequest, int], None]
    ) -> None:
        self._serve = serve
        self._log = log
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._exchange: HttpExchange | None = None
        self._continued = False
        self._serving = False
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        name = transport.get_extra_info("peername") or ("", 0)
        self._peer = f"{name[0]}:{name[1]}"

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange, self._exchange = self._exchange, None
        if exchange and exchange.on_lost:
            exchange.on_lost()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._serve_next()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the client has disconnected."""
        if self._transport is not None:
            self._transport.write(data)

    def on_replied(self, request: HttpRequest, status: int, *, keep: bool) -> None:
        """Log a request that was answered. Then serve the requests that arrived in the meantime."""
        self._log(request, status)
        self._exchange = None
        if not keep and self._transport is not None:
            self._transport.close()
            self._transport = None
        self._serve_next()

    def _serve_next(self) -> None:
        if self._serving:  # the response was sent from inside `serve`: the loop below continues
            return
        self._serving = True
        try:
            while self._transport is not None and self._exchange is None and self._received:
                if not self._serve_one():
                    return
        finally:
            self._serving = False

    def _serve_one(self) -> bool:
        try:
            parsed = self._parse()
        except BadRequest as bad:
            request = HttpRequest("BAD", "", {}, b"", self._peer)
            self._exchange = HttpExchange(self, request, keep=False)
            self._exchange.send(bad.status, str(bad).encode(), "text/plain; charset=utf-8")
            return False
        if parsed is None:
            return False
        keep = parsed.headers.get("connection", "").lower() != "close"
        self._exchange = HttpExchange(self, parsed, keep=keep)
        self._serve(self._exchange)
        return True

    def _parse(self) -> HttpRequest | None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > MAX_HEADER_BYTES:
                raise BadRequest(431, "header too large")
            return None
        method, target, headers = parse_head(bytes(self._received[:end]))
        if headers.get("expect", "").lower() == "100-continue" and not self._continued:
            self._continued = True
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        found = read_body(self._received, end + 4, headers)
        if found is None:
            return None
        body, used = found
        del self._received[:used]
        self._continued = False
        return HttpRequest(method, target, headers, body, self._peer)


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return (method, target, headers by lower-case name). Raises BadRequest."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "Invalid HTTP request received.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(400, "Invalid HTTP request received.")
        headers[name.strip().lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return words[0], words[1], headers


def read_body(received: bytearray, start: int, headers: dict[str, str]) -> tuple[bytes, int] | None:
    """Return (body, position after its end). Return None if the body is incomplete. Raises
    BadRequest.
    """
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _read_chunks(received, start)
    try:
        length = int(headers.get("content-length", "0"))
    except ValueError:
        raise BadRequest(400, "Invalid HTTP request received.") from None
    if not 0 <= length <= MAX_BODY_BYTES:
        raise BadRequest(413, "body too large")
    if len(received) < start + length:
        return None
    return bytes(received[start : start + length]), start + length


def _read_chunks(received: bytearray, start: int) -> tuple[bytes, int] | None:
    body = bytearray()
    while True:
        line_end = received.find(b"\r\n", start)
        if line_end < 0:
            return None
        try:
            size = int(received[start:line_end].split(b";")[0], 16)
        except ValueError:
            raise BadRequest(400, "Invalid HTTP request received.") from None
        if len(body) + size > MAX_BODY_BYTES:
            raise BadRequest(413, "body too large")
        start = line_end + 2
        if len(received) < start + size + 2:
            return None
        body += received[start : start + size]
        start += size + 2
        if size == 0:
            return bytes(body), start
