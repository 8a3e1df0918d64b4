"""Owns what is sent: the path, JSON body and HTTP request of one streamed completion; sends
nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from fleet_agent.load.workload.prompt_content import Content, as_messages, as_text, is_ids

CHAT: Final = "chat"
COMPLETIONS: Final = "completions"
GENERATE: Final = "generate"
PATHS: Final = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions", GENERATE: "/generate"}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A server: where it is, what its model is called and whether it understands SGLang's own
    fields.
    """

    url: str  # http(s)://host[:port][/base], without a trailing slash
    model: str = ""
    sglang: bool = True
    token: str = ""  # bearer token; empty: none is sent
    # met with the certificates of the cluster that sends: a relay of ours stands before it
    in_cluster: bool = False


def completion_body(
    target: LoadTarget, api: str, prompt: Content, output_tokens: int
) -> dict[str, Any]:
    """The JSON body of one streamed greedy completion of exactly `output_tokens` tokens (where the
    server can be held to that).

    An engine that is not SGLang gets standard fields only, so it may stop early: the finish_reason
    then tells. SGLang 0.5.23 refuses `return_meta_info` in a stream, so counts come from `usage`
    and `sglext`. Raises ValueError for an unknown api, and for token ids anywhere but at /generate.
    """
    if api not in PATHS:
        raise ValueError(f"api {api!r} is unknown; one of {', '.join(PATHS)}")
    if api == GENERATE:
        sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        asked = {"input_ids": prompt} if is_ids(prompt) else {"text": as_text(prompt)}
        return {**asked, "sampling_params": sampling, "stream": True}
    content: dict[str, Any] = {
        "model": target.model, "max_tokens": output_tokens, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    content |= {"messages": as_messages(prompt)} if api == CHAT else {"prompt": as_text(prompt)}
    if target.sglang:
        content |= {
            "ignore_eos": True,
            "return_spec_tokens_details": True,
            "return_cached_tokens_details": True,
        }
        if api == CHAT:
            content["return_output_ids_in_sglext"] = (
                True  # once, at the end: the token ids let us count for ourselves
            )
    return content


def http_request(target: LoadTarget, path: str, content: dict[str, Any] | None) -> bytes:
    """The bytes of a POST of `content` to `path` below the target's base path, on a connection that
    is kept.
    """
    parts = urlsplit(target.url)
    data = b"" if content is None else json.dumps(content, ensure_ascii=False).encode()
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json", f"Content-Length: {len(data)}", "Accept: text/event-stream, application/json",
    ]  # fmt: skip
    if target.token:
        lines.append(f"Authorization: Bearer {target.token}")
    return "\r\n".join([*lines, "", ""]).encode() + data
