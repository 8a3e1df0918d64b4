"""Owns the way from recorded reads of one answer to what it said; pure, never raises, never guesses
a count.

Shapes read: OpenAI chat and completions streams, and SGLang's /generate stream, as SGLang 0.5.23
writes them.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import Any

from fleet_agent.load.client import http_framing
from fleet_agent.load.client.fast_path import EventRun, EventTemplate
from fleet_agent.load.client.received import RecordedReads
from fleet_agent.load.client.request_record import ErrorName, Response
from fleet_agent.load.client.single_line_event import read_single_line_event
from fleet_agent.load.client.sse import SseEvent, SseParser

_MOST = 2**31 - 1  # a count above this is nonsense
_DETAIL = 300  # characters of a server's own words that are kept


@dataclass(slots=True)
class _DecodeState:
    """What has been read of the events so far."""

    times: list[int] = field(default_factory=list)  # of each event that has a text field
    has_text: bytearray = field(
        default_factory=bytearray
    )  # 1 for each of the same events that has a text
    texts: list[str] = field(
        default_factory=list
    )  # of each of them (/generate), or in other pieces
    counts: dict[int, int] = field(
        default_factory=dict
    )  # tokens so far, as said in the event of that place in `times`
    ids: list[int] = field(default_factory=list)  # token ids in that event (/generate)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_ct: int | None = None
    accept_length: float | None = None
    finish_reason: str = ""
    generate: bool = False
    events: int = 0
    done: bool = False
    error: tuple[str, str] = ("", "")

    @property
    def is_plain(self) -> bool:
        """True when the last text field said something and no count, and more may come."""
        is_over = self.finish_reason or self.done or self.error[0]
        return bool(self.texts and self.texts[-1]) and not (self.counts or self.generate or is_over)

    def output(self, ns: int, text: str, count: int | None) -> None:
        """An event with a text field."""
        if count is not None:
            self.counts[len(self.times)] = count
        self.times.append(ns)
        self.texts.append(text)
        self.has_text.append(text != "")

    def run(self, run: EventRun) -> None:
        """Events with a text and nothing else."""
        self.times.extend(run.times_ns)
        self.texts.append(run.text)
        self.has_text += b"\1" * len(run.times_ns)


def decode_response(
    reads: RecordedReads, *, closed: bool, failure: str = "", detail: str = ""
) -> Response:
    """Read a recorded answer. `closed`: the peer ended the connection; `failure`: what the client
    saw go wrong.

    The client's failure stands only while the answer is incomplete: a connection reset after the
    last byte is no failure. Costs about a microsecond for each read that is like the one before it,
    which most are, and ten for any other.
    """
    frame, reading = http_framing.HttpFraming(), _DecodeState()
    words = _read_all(reads, frame, reading)
    if closed:
        frame.close()
    last_ns = reads.last_ns
    if frame.state == http_framing.BROKEN:
        return Response(
            frame.status,
            last_ns=last_ns,
            error_kind=failure or ErrorName.MALFORMED,
            error_detail=frame.problem,
        )
    whole = frame.state == http_framing.ENDED
    if frame.status not in (0, 200):
        error_detail = words.decode("utf-8", "replace")
        return Response(
            frame.status,
            last_ns=last_ns,
            error_kind=ErrorName.HTTP_STATUS,
            error_detail=error_detail,
        )
    if whole and words and not reading.events:
        reading.error = (ErrorName.MALFORMED, "the answer is no event stream")
    kind, error_detail = _find_error(reading, whole, failure, detail)
    if not kind and not len(reads):
        kind = ErrorName.RESET
    return _response(reading, frame.status, last_ns, kind, error_detail)


def _read_all(
    reads: RecordedReads, frame: http_framing.HttpFraming, reading: _DecodeState
) -> bytes:
    """Take every read; the first bytes of the content, for people."""
    events, words, data = SseParser(), b"", reads.data
    alike: EventTemplate | None = None
    number = at = 0  # the read, and the byte of the answer, that come next
    while number < len(reads):
        if alike is not None and frame.is_between and events.is_between:
            run = alike.read_run(reads, number, at)
            reading.run(run)
            at = run.at
            number = bisect_right(reads.ends, at, number)
            if number == len(reads):
                break
        if (
            frame.is_between
            and events.is_between
            and frame.status == 200
            and (lone := read_single_line_event(data, at)) is not None
        ):
            event_data, at = lone
            completed = bisect_left(
                reads.ends, at - 2, number
            )  # the chunk's own end may come later
            _read_events(reading, [SseEvent(reads.times_ns[completed], event_data)])
            alike = EventTemplate.from_event(event_data) if reading.is_plain else None
            number = bisect_right(reads.ends, at, completed)
            continue
        end = min(frame.end_of_chunk(data, at), reads.ends[number])
        for piece in frame.feed(data[at:end]):
            words += piece[: _DETAIL - len(words)]
            found = events.feed(reads.times_ns[number], piece) if frame.status in (0, 200) else []
            _read_events(reading, found)
            if found:
                alike = EventTemplate.from_event(found[-1].data) if reading.is_plain else None
        at = end
        number += at == reads.ends[number]
    return words


def _read_events(reading: _DecodeState, found: Sequence[SseEvent]) -> None:
    """Take events as they come; what follows the end, or an error, says nothing any more."""
    for event in found:
        reading.events += 1
        if reading.done or reading.error[0]:
            return
        if event.data == b"[DONE]":
            reading.done = True
            continue
        try:
            content = json.loads(event.data.decode())
        except (ValueError, RecursionError):
            reading.error = (ErrorName.MALFORMED, event.data[:_DETAIL].decode("utf-8", "replace"))
            return
        if isinstance(content, dict):
            _read_one(reading, event.ns, content)
        else:
            reading.error = (ErrorName.MALFORMED, "an event is not a JSON object")


def _read_one(reading: _DecodeState, ns: int, content: Mapping[str, Any]) -> None:
    if content.get("error"):
        reading.error = (
            ErrorName.SERVER_ERROR,
            _text(_mapping(content["error"]).get("message")) or "an error in the stream",
        )
        return
    if content.get("meta_info"):
        _read_meta(reading, _mapping(content["meta_info"]))
    if content.get("usage"):
        _read_usage(reading, _mapping(content["usage"]))
    if content.get("sglext"):
        _read_extension(reading, _mapping(content["sglext"]))
    choices = content.get("choices")
    if choices is None and "text" in content:
        _read_generated(reading, ns, content)
    elif isinstance(choices, list) and choices and isinstance(choices[0], dict):
        _read_choice(reading, ns, choices[0], content)


def _read_generated(reading: _DecodeState, ns: int, content: Mapping[str, Any]) -> None:
    """An event of /generate."""
    ids = content.get("output_ids")
    reading.generate = True
    reading.ids.append(len(ids) if isinstance(ids, list) else 0)
    reading.output(
        ns,
        _text(content.get("text")),
        _count(_mapping(content.get("meta_info")).get("completion_tokens")),
    )


def _read_choice(
    reading: _DecodeState, ns: int, choice: Mapping[str, Any], content: Mapping[str, Any]
) -> None:
    """An event of an OpenAI stream that has a choice."""
    if choice.get("meta_info"):
        _read_meta(reading, _mapping(choice["meta_info"]))
    if choice.get("finish_reason"):
        _read_finish(reading, choice["finish_reason"])
    reading.output(
        ns, _choice_text(choice), _count(_mapping(content.get("usage")).get("completion_tokens"))
    )


def _read_meta(reading: _DecodeState, meta: Mapping[str, Any]) -> None:
    _read_finish(reading, meta.get("finish_reason"))
    _read_usage(reading, meta)
    _read_speculation(reading, meta)
    cached = _count(meta.get("cached_tokens"))
    reading.cached_tokens = reading.cached_tokens if cached is None else cached


def _read_usage(reading: _DecodeState, usage: Mapping[str, Any]) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        count = _count(usage.get(name))
        if count is not None:
            setattr(reading, name, count)
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    reading.cached_tokens = reading.cached_tokens if cached is None else cached


def _read_extension(reading: _DecodeState, extension: Mapping[str, Any]) -> None:
    details = extension.get("spec_tokens_details")
    _read_speculation(
        reading, _mapping(details[0] if isinstance(details, list) and details else details)
    )
    ids = extension.get("output_ids")
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        reading.ids = [len(ids[0])]
    cached = _mapping(extension.get("cached_tokens_details"))
    if cached:
        reading.cached_tokens = sum(
            _count(cached.get(name)) or 0 for name in ("device", "host", "storage")
        )


def _read_speculation(reading: _DecodeState, source: Mapping[str, Any]) -> None:
    steps = _count(source.get("spec_verify_ct"))
    reading.verify_ct = reading.verify_ct if steps is None else steps
    length = source.get("spec_accept_length")
    if isinstance(length, float | int) and not isinstance(length, bool) and 1 <= length < _MOST:
        reading.accept_length = float(length)


def _read_finish(reading: _DecodeState, reason: Any) -> None:
    """A text in the OpenAI APIs, {"type": text} in /generate."""
    if isinstance(reason, dict):
        reason = reason.get("type")
    if isinstance(reason, str) and reason:
        reading.finish_reason = reason


def _choice_text(choice: Mapping[str, Any]) -> str:
    """Content, reasoning and tool calls are all output."""
    delta = _mapping(choice.get("delta"))
    texts = [
        choice.get("text"),
        delta.get("content"),
        delta.get("reasoning_content"),
        delta.get("reasoning"),
    ]
    if delta.get("tool_calls"):
        texts += _call_texts(delta["tool_calls"])
    return "".join([text for text in texts if isinstance(text, str)])


def _call_texts(calls: Any) -> list[Any]:
    functions = (
        [_mapping(_mapping(call).get("function")) for call in calls]
        if isinstance(calls, list)
        else []
    )
    return [function.get(name) for function in functions for name in ("name", "arguments")]


def _find_error(reading: _DecodeState, whole: bool, failure: str, detail: str) -> tuple[str, str]:
    if reading.error[0]:
        return reading.error
    ended = reading.done or (whole and reading.finish_reason != "")
    if not ended or not whole:
        return failure or ErrorName.TRUNCATED, detail or "the answer ended before its end"
    if reading.finish_reason == "abort":
        return ErrorName.SERVER_ERROR, "the server aborted the request"
    if reading.completion_tokens is None:
        return ErrorName.NO_USAGE, "the server did not say how many tokens it wrote"
    return "", ""


def _response(reading: _DecodeState, status: int, last_ns: int, kind: str, detail: str) -> Response:
    texts, all_times = reading.texts, reading.times
    cumulative = reading.generate and _is_cumulative(texts)
    is_output = (
        bytes(text not in ("", before) for before, text in zip(["", *texts], texts, strict=False))
        if cumulative
        else reading.has_text
    )
    times = all_times if all(is_output) else list(compress(all_times, is_output))
    counts = (
        [reading.counts.get(place) for place in compress(range(len(is_output)), is_output)]
        if reading.counts
        else []
    )
    own = max(reading.ids, default=0) if cumulative else sum(reading.ids)
    return Response(
        status=status, chunk_ns=tuple(times), chunk_tokens=_differences(counts, reading.completion_tokens), last_ns=last_ns,
        prompt_tokens=reading.prompt_tokens, completion_tokens=reading.completion_tokens, cached_tokens=reading.cached_tokens,
        verify_ct=_verify_ct(reading), own_tokens=own or len(times), own_is_exact=own > 0,
        finish_reason=reading.finish_reason,
        text=(texts[-1] if texts else "") if cumulative else "".join(texts), error_kind=kind, error_detail=detail[:_DETAIL],
    )  # fmt: skip


def _is_cumulative(texts: Sequence[str]) -> bool:
    """/generate repeats all text in each event, unless the server streams increments; a half
    character at the end may change.
    """
    return all(later.startswith(text.rstrip("\ufffd")) for text, later in pairwise(texts))


def _differences(counts: Sequence[int | None], total: int | None) -> tuple[int, ...] | None:
    """Tokens of each chunk from the counts so far; tokens without text of their own go to the next
    chunk, the last ones to the last.
    """
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    if total is not None and total > known[-1]:
        known[-1] = total
    steps = tuple(later - earlier for earlier, later in zip([0, *known], known, strict=False))
    return steps if min(steps) >= 0 else None


def _verify_ct(reading: _DecodeState) -> int | None:
    """Old servers give only the accept length, which is completion tokens / verify steps."""
    if reading.verify_ct is None and reading.accept_length and reading.completion_tokens:
        return max(1, round(reading.completion_tokens / reading.accept_length))
    return reading.verify_ct or None


def _count(value: Any) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
        else None
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
