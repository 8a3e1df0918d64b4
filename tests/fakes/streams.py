"""Owns made-up answers of a server, byte for byte in the shapes that SGLang 0.5.23 writes; sends
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return (
        b"data: "
        + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        + b"\n\n"
    )


def answer(events: Sequence[bytes]) -> bytes:
    """A whole answer, a chunk for each event."""
    return HEAD + b"".join(map(chunk, [*events, DONE])) + LAST_CHUNK


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> bytes:
    """A chat event with that delta."""
    choice = {
        "index": index,
        "delta": {"reasoning_content": None, **fields},
        "finish_reason": finish,
        "matched_stop": None,
    }
    return event(
        {
            "id": "a1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
    )


def tail(
    tokens: int, *, prompt: int = 20, steps: int = 0, cached: int = 0, ids: int = 0
) -> list[bytes]:
    """The events after the last delta: SGLang's own fields where there are any, then the usage."""
    told: dict[str, Any] = {}
    if steps:
        told["spec_tokens_details"] = {
            "spec_accept_length": tokens / steps,
            "spec_verify_ct": steps,
        }
    if cached:
        told["cached_tokens_details"] = {"device": cached, "host": 0}
    if ids:
        told["output_ids"] = [list(range(ids))]
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": None,
    }
    common = {
        "id": "a1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
    }
    extra = [event({**common, "usage": None, "sglext": told})] if told else []
    return [*extra, event({**common, "usage": usage})]


def chat_events(
    texts: Sequence[str], *, tokens: int | None = None, finish: str = "length", **told: int
) -> list[bytes]:
    """A chat stream: a role without text, one event a text, the finish, the tail."""
    count = len(texts) if tokens is None else tokens
    role, last = delta(role="assistant", content=""), delta(finish=finish)
    return [role, *(delta(content=text) for text in texts), last, *tail(count, **told)]


def chat(
    texts: Sequence[str], *, tokens: int | None = None, finish: str = "length", **told: int
) -> bytes:
    """A whole chat answer."""
    return answer(chat_events(texts, tokens=tokens, finish=finish, **told))


def generate(
    steps: Sequence[tuple[str, int]],
    *,
    finish: str = "length",
    prompt: int = 20,
    cached: int = 0,
    verify: int = 0,
) -> bytes:
    """A /generate answer: each event repeats all text; `steps` are (new text, new tokens)."""
    events, text, tokens = [], "", 0
    for index, (more, count) in enumerate(steps):
        text, tokens = text + more, tokens + count
        last = index == len(steps) - 1
        meta: dict[str, Any] = {
            "id": "g1",
            "finish_reason": {"type": finish, "length": tokens} if last else None,
            "prompt_tokens": prompt,
        }
        meta |= {"completion_tokens": tokens, "cached_tokens": cached}
        meta |= (
            {"spec_verify_ct": verify, "spec_accept_length": tokens / verify}
            if verify and last
            else {}
        )
        events.append(event({"text": text, "output_ids": list(range(tokens)), "meta_info": meta}))
    return answer(events)
