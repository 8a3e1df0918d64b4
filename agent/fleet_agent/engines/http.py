"""Owns one HTTP exchange with a server that is being looked at: no retry, no connection kept, no judgement."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

Answer = tuple[int, bytes]
LARGEST_ANSWER_BYTES = 32 << 20
_PIECE_BYTES = 256 << 10


async def exchange(url: str, path: str, body: dict[str, Any] | None = None) -> Answer:
    """(status, content) of a GET, or of a POST of `body` as JSON. Raises OSError, EOFError or ValueError when there is no whole answer."""
    place = urlsplit(url)
    tls = place.scheme == "https"
    reader, writer = await asyncio.open_connection(place.hostname, place.port or (443 if tls else 80), ssl=tls or None)
    try:
        content = json.dumps(body).encode() if body is not None else b""
        head = f"{'GET' if body is None else 'POST'} {place.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {place.netloc}\r\n"
        head += f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        answer = await _whole(reader)
    finally:
        writer.close()
    return _parse(answer)


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the end. Raises EOFError for an answer that has none: a server that is looked at is somebody else's program."""
    answer = bytearray()
    while piece := await reader.read(_PIECE_BYTES):
        answer += piece
        if len(answer) > LARGEST_ANSWER_BYTES:
            raise EOFError(f"the answer is larger than {LARGEST_ANSWER_BYTES} bytes")
    return bytes(answer)


def as_object(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises ValueError when it is anything else."""
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("JSON that is nested without end") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not {type(value).__name__}")
    return value


def _parse(answer: bytes) -> Answer:
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    status = first.split(b" ", 2)
    if len(status) < 2:
        raise EOFError("the connection was closed without an answer")
    chunked = any(line.lower().startswith(b"transfer-encoding:") and b"chunked" in line.lower() for line in lines)
    return int(status[1]), _joined(rest) if chunked else rest


def _joined(chunks: bytes) -> bytes:
    """The content of a chunked body (RFC 9112, 7.1)."""
    content = b""
    while True:
        size, mark, rest = chunks.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            return content
        if not mark or len(rest) < length:
            raise EOFError("the connection was closed inside an answer")
        content += rest[:length]
        chunks = rest[length + 2 :]
