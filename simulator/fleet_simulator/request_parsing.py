"""Parses and validates the requests of clients. Error texts have SGLang's wording."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fleet_simulator.responses import ResponseOptions
from fleet_simulator.token_text import TEMPLATE

_GENERATE_DEFAULT_TOKENS = 128
_NATURAL_TOKENS_MIN = 200
_NATURAL_TOKENS_SPREAD = 600


class RequestRejected(Exception):
    """Reports that a request gets status 400 with this text. `kind` is SGLang's name for the type
    of error.
    """

    def __init__(self, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Holds one requested generation. `limit` is the maximum number of tokens; None
    sets no limit.
    """

    prompt: tuple[str | int, ...]
    limit: int | None
    ignore_eos: bool
    model: str
    options: ResponseOptions


def parse_json_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises RequestRejected."""
    try:
        value = json.loads(body)
    except ValueError as error:
        where = getattr(error, "pos", 0)
        message = (
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': ('body', {where}),"
            " 'msg': 'JSON decode error'}"
        )
        raise RequestRejected(message, "Bad Request") from None
    if not isinstance(value, dict):
        message = (
            "1 validation error:\n  {'type': 'dict_type', 'loc': ('body',),"
            " 'msg': 'Input should be a valid dictionary'}"
        )
        raise RequestRejected(message, "Bad Request")
    return value


def parse_generate(body: dict[str, Any]) -> GenerationRequest:
    """Parse the body of /generate. Raises RequestRejected."""
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise RequestRejected("Either text, input_ids or input_embeds should be provided.")
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise RequestRejected(
            "the simulated server accepts one request per call: sampling_params must be an object"
        )
    limit = _limit(sampling.get("max_new_tokens", _GENERATE_DEFAULT_TOKENS), "max_new_tokens")
    wanted = ResponseOptions(stream=bool(body.get("stream")))
    return GenerationRequest(
        _prompt(text if ids is None else ids), limit, bool(sampling.get("ignore_eos")), "", wanted
    )


def parse_chat(body: dict[str, Any]) -> GenerationRequest:
    """Parse the body of /v1/chat/completions. Raises RequestRejected."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRejected("Messages cannot be empty.")
    tokens: list[str | int] = list(TEMPLATE)
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise RequestRejected(
                "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'messages'),"
                " 'msg': 'Field required'}"
            )
        tokens += [*_content(message.get("content")), f"<|{message['role']}|>"]
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return _openai(body, tuple(tokens), None if limit is None else _limit(limit, "max_tokens"))


def parse_completion(body: dict[str, Any]) -> GenerationRequest:
    """Parse the body of /v1/completions. Raises RequestRejected."""
    limit = body.get("max_tokens")
    return _openai(
        body, _prompt(body.get("prompt")), 16 if limit is None else _limit(limit, "max_tokens")
    )


def choose_output_tokens(
    request: GenerationRequest, ring_start: int, *, short: bool
) -> tuple[int, bool]:
    """Return (number of tokens in the response, whether the response ends with a stop token).

    With ignore_eos and a limit, the number is the limit. Otherwise the prompt decides the number,
    up to the limit. `short` simulates a fault: the number is half of the limit, or half of what the
    prompt decides if there is no limit.
    """
    natural = _NATURAL_TOKENS_MIN + ring_start % _NATURAL_TOKENS_SPREAD
    limit = natural if request.limit is None else request.limit
    if short:
        return max(limit // 2, 1), True
    if request.ignore_eos and request.limit is not None:
        return limit, False
    return (natural, True) if natural <= limit else (limit, False)


def _openai(
    body: dict[str, Any], prompt: tuple[str | int, ...], limit: int | None
) -> GenerationRequest:
    options = body.get("stream_options") or {}
    stream = bool(body.get("stream"))
    if stream and body.get("return_meta_info"):
        raise RequestRejected(
            "return_meta_info is not supported with streaming."
            " Please set stream=false when using return_meta_info=true."
        )
    if body.get("n", 1) != 1:
        raise RequestRejected("the simulated server returns one choice per request: n must be 1")
    wanted = ResponseOptions(
        stream=stream,
        usage=bool(options.get("include_usage")),
        usage_always=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        meta_info=bool(body.get("return_meta_info")),
        spec_details=bool(body.get("return_spec_tokens_details")),
        cached_details=bool(body.get("return_cached_tokens_details")),
        output_ids=bool(body.get("return_output_ids_in_sglext")) and "messages" in body,
    )
    return GenerationRequest(
        prompt, limit, bool(body.get("ignore_eos")), str(body.get("model") or "default"), wanted
    )


def _limit(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestRejected(f"{name} must be at least 1, got {value!r}.")
    return value


def _prompt(prompt: Any) -> tuple[str | int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tuple(prompt.split()) or ("",)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return tuple(prompt)
    raise RequestRejected(
        "the simulated server accepts one prompt per call: a text or a list of token ids"
    )


def _content(content: Any) -> list[str]:
    if isinstance(content, list):
        return [
            word
            for part in content
            if isinstance(part, dict)
            for word in str(part.get("text", "")).split()
        ]
    return str(content or "").split()
