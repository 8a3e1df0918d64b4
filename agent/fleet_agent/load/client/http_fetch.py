"""Makes single HTTP requests to a server. It does not retry, and closes the connection after each
request.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from fleet_agent.load.client.http_framing import BROKEN, ENDED, HttpFraming

HttpAnswer = tuple[int, bytes]
LARGEST_HTTP_ANSWER_BYTES = 32 << 20
_EXCERPT_BYTES = 300
_PIECE_BYTES = 256 << 10


async def fetch(
    url: str, path: str, body: dict[str, Any] | None = None, api_key: str = ""
) -> HttpAnswer:
    """Send a GET, or a POST of `body` as JSON, with `api_key` as the bearer token. Return (status,
    content). Raises OSError, EOFError or ValueError if no complete answer arrives.
    """
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if tls else 80), ssl=tls or None
    )
    try:
        content = json.dumps(body).encode() if body is not None else b""
        head = (
            f"{'GET' if body is None else 'POST'} {parts.path.rstrip('/')}{path} HTTP/1.1\r\n"
            f"host: {parts.netloc}\r\nconnection: close\r\n"
            + (f"authorization: Bearer {api_key}\r\n" if api_key else "")
            + f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        return await _read_answer(reader)
    finally:
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
    """Read one answer. If the answer itself does not show where it ends, read until the server
    closes the connection.

    Not every server closes the connection when the client asks for this.
    """
    framing, content, size = HttpFraming(), bytearray(), 0
    while framing.state not in (ENDED, BROKEN):
        piece = await reader.read(_PIECE_BYTES)
        size += len(piece)
        if not piece and not framing.close():
            raise EOFError(
                "the server closed the connection in the middle of an answer"
                if size
                else "the server closed the connection without sending an answer"
            )
        if size > LARGEST_HTTP_ANSWER_BYTES:  # the server is not our program
            raise EOFError(f"the answer is larger than {LARGEST_HTTP_ANSWER_BYTES} bytes")
        for content_part in framing.feed(piece):
            content += content_part
    if framing.state == BROKEN:
        raise ValueError(framing.problem)
    return framing.status, bytes(content)


def status_text(status: int, content: bytes) -> str:
    """Return the status of an answer with the beginning of its content."""
    words = excerpt(content)
    return f"status {status}: {words}" if words else f"status {status}"


def excerpt(content: bytes) -> str:
    """Return the beginning of a content on one line."""
    return " ".join(content[:_EXCERPT_BYTES].decode(errors="replace").split())


def parse_json_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object in `content`. Raises ValueError if the content is not a
    JSON object.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ValueError(f"the content is JSON of type {kind}, not a JSON object")
    return value
