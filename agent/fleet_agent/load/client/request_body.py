"""Builds the path, the JSON body and the HTTP request for one streamed completion."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from fleet_agent.load.workload.prompt_content import Content, as_messages, as_text, is_ids

CHAT: Final = "chat"
COMPLETIONS: Final = "completions"
GENERATE: Final = "generate"
PATHS: Final = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions", GENERATE: "/generate"}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Holds how to reach a server: its address, the name of its model, and whether it accepts
    SGLang's own fields in requests.
    """

    url: str  # http(s)://host[:port][/base], without a trailing slash
    model: str = ""
    sglang: bool = True
    token: str = field(default="", repr=False)  # bearer token; empty: no Authorization header
    # reached through our relay, with the TLS certificates of the load cluster
    in_cluster: bool = False


def completion_body(
    target: LoadTarget, api: str, prompt: Content, output_tokens: int
) -> dict[str, Any]:
    """Return the JSON body of one streamed greedy completion with exactly `output_tokens` tokens.

    A server that is not SGLang gets only standard fields. It may therefore stop earlier, which its
    finish_reason shows. SGLang 0.5.23 rejects `return_meta_info` in a stream, so token counts are
    read from `usage` and `sglext`. Raises ValueError if the api is unknown, or if the prompt is
    token ids and the api is not generate.
    """
    if api not in PATHS:
        known = ", ".join(PATHS)
        raise ValueError(f"the api {api!r} is unknown: use one of {known}")
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
            # the token ids, sent once at the end, allow the client to count for itself
            content["return_output_ids_in_sglext"] = True
    return content


def http_request(target: LoadTarget, path: str, content: dict[str, Any] | None) -> bytes:
    """Return the bytes of a POST of `content` to `path`, for a connection that stays open. The base
    path of the target is put before `path`.
    """
    parts = urlsplit(target.url)
    data = b"" if content is None else json.dumps(content, ensure_ascii=False).encode()
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Accept: text/event-stream, application/json",
    ]
    if target.token:
        lines.append(f"Authorization: Bearer {target.token}")
    return "\r\n".join([*lines, "", ""]).encode() + data
