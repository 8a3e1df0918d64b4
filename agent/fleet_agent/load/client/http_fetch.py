"""Owns one HTTP exchange with a server that is being looked at: no retry, no connection kept, no
judgement.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from fleet_agent.load.client.http_framing import BROKEN, ENDED, HttpFraming

HttpAnswer = tuple[int, bytes]
LARGEST_HTTP_ANSWER_BYTES = 32 << 20
_PIECE_BYTES = 256 << 10


async def fetch(url: str, path: str, body: dict[str, Any] | None = None) -> HttpAnswer:
    """(status, content) of a GET, or of a POST of `body` as JSON. Raises OSError, EOFError or
    ValueError when there is no whole answer.
    """
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if tls else 80), ssl=tls or None
    )
    try:
        content = json.dumps(body).encode() if body is not None else b""
        head = f"{'GET' if body is None else 'POST'} {parts.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        head += f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        return await _read_answer(reader)
    finally:
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
    """Up to where it says that it ends, since not every server closes when it is asked to; to the
    connection's end where it does not.
    """
    framing, content, size = HttpFraming(), bytearray(), 0
    while framing.state not in (ENDED, BROKEN):
        piece = await reader.read(_PIECE_BYTES)
        size += len(piece)
        if not piece and not framing.close():
            raise EOFError(
                "the connection was closed inside an answer"
                if size
                else "the connection was closed without an answer"
            )
        if (
            size > LARGEST_HTTP_ANSWER_BYTES
        ):  # a server that is looked at is somebody else's program
            raise EOFError(f"the answer is larger than {LARGEST_HTTP_ANSWER_BYTES} bytes")
        for content_part in framing.feed(piece):
            content += content_part
    if framing.state == BROKEN:
        raise ValueError(framing.problem)
    return framing.status, bytes(content)


def parse_json_object(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises ValueError when it is anything else."""
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("JSON that is nested without end") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not {type(value).__name__}")
    return value
