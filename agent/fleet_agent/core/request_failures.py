"""Describes the failed requests of a run: their kinds, what the server said and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_MOST_EXAMPLES = 4
_EXAMPLE_CHARACTERS = 200
_STATUS = "http_status "  # and the status: the names of examples of this kind
_HINTS: Mapping[str, str] = {
    "connect": "check that the server listens at this address and accepts so many connections",
    "server_error": "read the server's log",
    "reset": "read the server's log: it closed the connection",
    "truncated": "read the server's log: it ended the answer before its end",
    "malformed": "check that the address is that of an OpenAI API or an SGLang server",
    "no_usage": "the server must report `usage` in a stream (stream_options.include_usage)",
    "timeout": "lower the load, or raise request_timeout",
    "stalled": "read the server's log: answers began and then stopped",
}
_STATUS_HINTS: Mapping[int, str] = {
    400: "the server rejects the request: compare lengths and fields with what it supports",
    401: "the server requires a key that the job does not have",
    403: "the server requires a key that the job does not have",
    404: "the server has no such endpoint or model",
    413: "the prompt is too long for the server",
    429: "the server limits the rate of requests: lower the load, or lift the limit",
}
_OVERLOADED = "the server is overloaded or broken: lower the load, or read its log"


def describe_failures(kinds: Mapping[str, int], examples: Mapping[str, str]) -> str:
    """Return `: 3 × http_status; first of each: …` with the number of each kind, most frequent
    first, and the first example of each. The result is empty if nothing failed.

    `examples` maps a kind, or `http_status 503`, to the server's words.
    """
    if not kinds:
        return ""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    counts = ", ".join(f"{count} × {kind}" for kind, count in ordered)
    shown = list(_described(examples))
    more = f"; first of each: {'; '.join(shown)}" if shown else ""
    return f": {counts}{more}"


def _described(examples: Mapping[str, str]) -> Iterator[str]:
    for name, text in list(examples.items())[:_MOST_EXAMPLES]:
        words = " ".join(text.split())[:_EXAMPLE_CHARACTERS]
        hint = _hint(name)
        said = f"{name}: {words}" if words else name
        yield f"{said} ({hint})" if hint else said


def _hint(name: str) -> str:
    if not name.startswith(_STATUS):
        return _HINTS.get(name, "")
    status = int(name.removeprefix(_STATUS))
    return _STATUS_HINTS.get(status, _OVERLOADED if status >= 500 else "")
