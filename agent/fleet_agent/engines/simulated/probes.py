"""Owns the looks at a server over HTTP: is it healthy, is it the one that was launched, does it complete a request."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from fleet_protos.errors import ErrorKind, ServerFailed

_COMPLETION = {"text": "ready", "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}}


async def look(url: str, *, model_path: str) -> str:
    """Empty when ready, else what is missing. Raises ServerFailed when another model answers at `url`."""
    try:
        status, _ = await _request(url, "/health_generate")
        if status != 200:
            return f"/health_generate answers {status}"
        _, identity = await _request(url, "/model_info")
        _check_identity(url, model_path, json.loads(identity))
        status, answer = await _request(url, "/generate", _COMPLETION)
    except (OSError, EOFError, ValueError) as error:
        return f"nothing answers at {url} yet ({type(error).__name__})"
    if status != 200 or not json.loads(answer).get("output_ids"):
        return f"a completion of 2 tokens answers {status}"
    return ""


async def server_info(url: str) -> dict[str, Any]:
    """/server_info. Raises ServerFailed when it cannot be had."""
    try:
        status, body = await _request(url, "/server_info")
        info = json.loads(body)
    except (OSError, EOFError, ValueError) as error:
        raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "unhealthy", f"{url}/server_info: {type(error).__name__} {error}") from error
    if status != 200 or not isinstance(info, dict):
        raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "unhealthy", f"{url}/server_info answers {status}")
    return info


def _check_identity(url: str, model_path: str, info: Any) -> None:
    found = info.get("model_path") if isinstance(info, dict) else None
    if found != model_path:
        message = f"another server answers at {url}: it serves {found}, and {model_path} was launched"
        raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "wrong_identity", message)


async def _request(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        content = json.dumps(body).encode() if body is not None else b""
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: {place.netloc}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        answer = await reader.read(-1)
    finally:
        writer.close()
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    words = head_bytes.split(b" ", 2)
    if len(words) < 2:
        raise EOFError("the connection was closed without an answer")
    return int(words[1]), rest
