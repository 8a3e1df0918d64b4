"""Formats responses as SGLang 0.5.23 does: /generate, chat completions and text completions, both
streamed and whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fleet_simulator.batching import Generation
from fleet_simulator.http_server import http_chunk
from fleet_simulator.token_text import TokenRing

DONE = http_chunk(b"data: [DONE]\n\n")


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """Holds what the client wants the response to contain."""

    stream: bool = False
    usage: bool = False
    usage_always: bool = False
    meta_info: bool = False
    spec_details: bool = False
    cached_details: bool = False
    output_ids: bool = False


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """Holds what is the same in every response to one request. `clock_offset_s` is Unix time minus
    the monotonic clock.
    """

    id: str
    model: str
    created: int
    options: ResponseOptions
    ring: TokenRing
    draft_tokens: int = 0
    cache_report: bool = False
    clock_offset_s: float = 0.0


class ResponseFormat(Protocol):
    """Formats the responses of one API.

    In a stream, `delta` is called for each group of new tokens, and `last_frames` once after the
    last token.
    """

    def first_frames(self, generation: Generation) -> bytes:
        """Return the frames that are sent before the first token."""

    def delta(self, generation: Generation, count: int) -> bytes:
        """Return the frame of the newest `count` tokens."""

    def last_frames(self, generation: Generation) -> bytes:
        """Return the frames that are sent after the last token, with the end mark."""

    def full_body(self, generation: Generation) -> bytes:
        """Return the body of a response that is not streamed."""


def dump_json(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def sse_chunk(value: Any) -> bytes:
    """Return one server-sent event as an HTTP chunk."""
    return http_chunk(b"data: " + dump_json(value) + b"\n\n")


def finish_reason(generation: Generation) -> dict[str, Any]:
    """Return why the generation ended, in SGLang's format."""
    return (
        {"type": "stop", "matched": 1}
        if generation.stops_itself
        else {"type": "length", "length": generation.done}
    )


def usage(generation: Generation, context: ResponseContext) -> dict[str, Any]:
    """Return the token counts of the OpenAI API. Cached tokens are included only if the server runs
    with --enable-cache-report.
    """
    reported = context.cache_report and generation.cached_tokens > 0
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + generation.done,
        "completion_tokens": generation.done,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens} if reported else None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def spec_counts(generation: Generation, draft_tokens: int) -> dict[str, Any]:
    """Return the acceptance counts of one request, in SGLang's format.

    The accept rate is (accepted drafts) / (proposed drafts), as in 0.5.12 and later.
    """
    correct = sum(drafts * cycles for drafts, cycles in enumerate(generation.correct_drafts))
    proposed = generation.verify_steps * (draft_tokens - 1)
    histogram = list(generation.correct_drafts)
    while len(histogram) > 1 and not histogram[-1]:
        histogram.pop()
    return {
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_length": generation.done / generation.verify_steps
        if generation.verify_steps
        else 0.0,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": generation.verify_steps,
        "spec_correct_drafts_histogram": histogram,
    }


def cached_details(generation: Generation) -> dict[str, int] | None:
    """Return the number of cached tokens by source. Return None if no token was cached."""
    return {"device": generation.cached_tokens, "host": 0} if generation.cached_tokens else None


def running_meta(generation: Generation, context: ResponseContext) -> dict[str, Any]:
    """Return `meta_info` of a request that is still running."""
    return {
        "id": context.id,
        "finish_reason": None,
        "prompt_tokens": generation.prompt_tokens,
        "weight_version": "default",
        "num_retractions": 0,
        "queue_time": 0.0,
        "reasoning_tokens": 0,
        "completion_tokens": generation.done,
        "cached_tokens": generation.cached_tokens,
        "cached_tokens_details": cached_details(generation),
        "dp_rank": None,
    }


def final_meta(generation: Generation, context: ResponseContext) -> dict[str, Any]:
    """Return `meta_info` of a finished request. Latencies are in wall seconds."""
    decode_s = generation.finished_s - generation.first_token_s
    return {
        **running_meta(generation, context),
        "finish_reason": finish_reason(generation),
        "weight_versions": [{"version": "default", "start": 0, "end": generation.done}],
        "e2e_latency": generation.finished_s - generation.arrived_s,
        **(spec_counts(generation, context.draft_tokens) if context.draft_tokens else {}),
        "request_received_ts": generation.arrived_s + context.clock_offset_s,
        "first_token_latency": generation.first_token_s - generation.arrived_s,
        "request_finished_ts": generation.finished_s + context.clock_offset_s,
        "decode_throughput": (generation.done - 1) / decode_s if decode_s > 0 else 0.0,
    }


def sglang_extension(generation: Generation, context: ResponseContext) -> dict[str, Any] | None:
    """Return the object that SGLang adds to OpenAI responses. Return None if it would be empty, for
    example because the client did not ask for it.
    """
    extension: dict[str, Any] = {}
    if context.options.cached_details and generation.cached_tokens:
        extension["cached_tokens_details"] = cached_details(generation)
    if context.options.spec_details and context.draft_tokens:
        blank = {
            "spec_cap_length": 0.0,
            "spec_block_accept_length": 0.0,
            "spec_cap_lens_histogram": [],
        }
        extension["spec_tokens_details"] = {
            **spec_counts(generation, context.draft_tokens),
            **blank,
        }
    if context.options.output_ids:
        extension["output_ids"] = [
            [
                int(token)
                for token in context.ring.ids(generation.ring_start, generation.done).split(b",")
            ]
        ]
    return extension or None


class GenerateFormat:
    """Formats responses of /generate. Each event contains the whole text so far.

    SGLang does the same unless it is started with --incremental-streaming-output.
    """

    def __init__(self, context: ResponseContext) -> None:
        self._context = context

    def first_frames(self, generation: Generation) -> bytes:
        return b""

    def delta(self, generation: Generation, count: int) -> bytes:
        meta = final_meta if generation.finished else running_meta
        return http_chunk(
            b"data: " + self._body(generation, meta(generation, self._context)) + b"\n\n"
        )

    def last_frames(self, generation: Generation) -> bytes:
        return DONE

    def full_body(self, generation: Generation) -> bytes:
        return self._body(generation, final_meta(generation, self._context))

    def _body(self, generation: Generation, meta: Mapping[str, Any]) -> bytes:
        words = self._context.ring
        text = words.text(generation.ring_start, generation.done)
        ids = words.ids(generation.ring_start, generation.done)
        return b'{"text":"%b","output_ids":[%b],"meta_info":%b}' % (text, ids, dump_json(meta))


class OpenAiFormat:
    """Formats responses of /v1/chat/completions and /v1/completions. Each event contains only the
    new text.
    """

    def __init__(self, context: ResponseContext, *, chat: bool) -> None:
        self._context = context
        self._chat = chat
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._head = dump_json(
            {"id": context.id, "object": kind, "created": context.created, "model": context.model}
        )[:-1]
        before = b'"delta":{"reasoning_content":null,"content":"' if chat else b'"text":"'
        after = b'"},' if chat else b'",'
        self._before = b"data: " + self._head + b',"choices":[{"index":0,' + before
        self._after = after + b'"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'

    def first_frames(self, generation: Generation) -> bytes:
        if not self._chat:
            return b""
        delta = {"reasoning_content": None, "role": "assistant", "content": ""}
        return self._event([self._choice({"delta": delta}, None)])

    def delta(self, generation: Generation, count: int) -> bytes:
        text = self._context.ring.text(generation.ring_start + generation.done - count, count)
        if self._context.options.usage_always or (generation.finished and not self._chat):
            return self._general_delta(generation, text.decode())
        before, after = self._before, self._after
        return b"%x\r\n%b%b%b\r\n" % (len(before) + len(text) + len(after), before, text, after)

    def _general_delta(self, generation: Generation, text: str) -> bytes:
        content = (
            {"delta": {"reasoning_content": None, "content": text}}
            if self._chat
            else {"text": text}
        )
        ends = generation.finished and not self._chat
        extra = (
            {"usage": usage(generation, self._context)}
            if self._context.options.usage_always
            else {}
        )
        return self._event([self._choice(content, generation if ends else None)], **extra)

    def last_frames(self, generation: Generation) -> bytes:
        frames = b""
        if self._chat:
            frames += self._event(
                [self._choice({"delta": {"reasoning_content": None}}, generation)]
            )
        extension = sglang_extension(generation, self._context)
        if extension:
            frames += self._event([], usage=None, sglext=extension)
        if self._context.options.usage:
            counts = usage(generation, self._context)
            frames += self._event(
                [],
                usage=counts
                if self._chat
                else {name: count for name, count in counts.items() if count is not None},
            )
        return frames + DONE

    def full_body(self, generation: Generation) -> bytes:
        text = self._context.ring.text(generation.ring_start, generation.done).decode()
        content = (
            {"message": {"role": "assistant", "content": text, "reasoning_content": None}}
            if self._chat
            else {"text": text}
        )
        choice = self._choice(content, generation)
        if self._context.options.meta_info and self._chat:
            choice["meta_info"] = final_meta(generation, self._context)
        extension = sglang_extension(generation, self._context)
        versions = [{"version": "default", "start": 0, "end": generation.done}]
        answer = {
            "id": self._context.id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._context.created,
            "model": self._context.model,
            "choices": [choice],
            "usage": usage(generation, self._context),
            "metadata": {"weight_version": "default", "weight_versions": versions},
        }
        return dump_json({**answer, "sglext": extension} if extension else answer)

    def _choice(self, content: dict[str, Any], ended: Generation | None) -> dict[str, Any]:
        reason = finish_reason(ended) if ended else {"type": None}
        return {
            "index": 0,
            **content,
            "logprobs": None,
            "finish_reason": reason["type"],
            "matched_stop": reason.get("matched"),
        }

    def _event(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        rest = dump_json({"choices": choices, **extra})[1:]
        return http_chunk(b"data: " + self._head + b"," + rest + b"\n\n")
