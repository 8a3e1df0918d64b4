"""Decodes the recorded reads of one answer. It never raises and never guesses a count.

It understands the streams of SGLang 0.5.23: chat and text completions of the OpenAI API, and
/generate.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from operator import sub
from typing import Any

from fleet_agent.load.client import http_framing
from fleet_agent.load.client.fast_path import EventRun, EventTemplate
from fleet_agent.load.client.received import RecordedReads
from fleet_agent.load.client.request_record import ErrorName, Response
from fleet_agent.load.client.single_line_event import read_single_line_event
from fleet_agent.load.client.sse import SseEvent, SseParser

_MAX_COUNT = 2**31 - 1  # a larger count is not believed
_DETAIL_CHARACTERS = 300  # characters of a server's own text that are kept


@dataclass(slots=True)
class _DecodeState:
    """Holds what has been decoded of an answer so far."""

    # of each event that has a text field
    times: array[int] = field(default_factory=lambda: array("q"))
    has_text: bytearray = field(default_factory=bytearray)  # 1 for each of these that has a text
    # one for each of these events (/generate), or one for a run of events
    texts: list[str] = field(default_factory=list)
    # cumulative tokens by the event's index in `times`, where the event reports them
    counts: dict[int, int] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)  # token ids in that event (/generate)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_ct: int | None = None
    accept_length: float | None = None
    finish_reason: str = ""
    generate: bool = False
    events: int = 0
    last_data: bytes = b""  # of the last event before [DONE] that was parsed as JSON
    done: bool = False
    error: tuple[str, str] = ("", "")

    @property
    def is_plain_text(self) -> bool:
        """Return whether the newest event had a text but no count, and more such events
        may follow.
        """
        is_over = self.finish_reason or self.done or self.error[0]
        return bool(self.texts and self.texts[-1]) and not (self.counts or self.generate or is_over)

    def add_event(self, ns: int, text: str, count: int | None) -> None:
        """Record one event that has a text field."""
        if count is not None:
            self.counts[len(self.times)] = count
        self.times.append(ns)
        self.texts.append(text)
        self.has_text.append(text != "")

    def add_run(self, run: EventRun) -> None:
        """Record several events that have only a text."""
        self.times.extend(run.times_ns)
        self.texts.append(run.text)
        self.has_text += b"\1" * len(run.times_ns)


def decode_response(
    reads: RecordedReads, *, closed: bool, failure: str = "", detail: str = ""
) -> Response:
    """Decode a recorded answer.

    `closed`: True if the server closed the connection.
    `failure`, `detail`: the error that the client saw, if any.

    The client's error is used only if the answer is incomplete: a request does not fail because the
    connection is reset after the last byte. Decoding takes about 1 µs for each read that resembles
    the read before it, as most reads do, and 10 µs for any other read.
    """
    framing, state = http_framing.HttpFraming(), _DecodeState()
    beginning = _read_all(reads, framing, state)
    if closed:
        framing.close()
    last_ns = reads.last_ns
    if framing.state == http_framing.BROKEN:
        kind = failure or ErrorName.MALFORMED
        return Response(
            framing.status, last_ns=last_ns, error_kind=kind, error_detail=framing.problem
        )
    is_complete = framing.state == http_framing.ENDED
    if framing.status not in (0, 200):
        words = _shown(beginning)
        return Response(
            framing.status, last_ns=last_ns, error_kind=ErrorName.HTTP_STATUS, error_detail=words
        )
    if is_complete and beginning and not state.events:
        state.error = (ErrorName.MALFORMED, f"not an event stream: {_shown(beginning)}")
    kind, error_detail = _find_error(state, is_complete, failure, detail)
    if not kind and not len(reads):
        kind = ErrorName.RESET
    return _response(state, framing.status, last_ns, kind, error_detail)


def _read_all(
    reads: RecordedReads, framing: http_framing.HttpFraming, state: _DecodeState
) -> bytes:
    """Decode all reads into `state`. Return the beginning of the content, for error messages."""
    events, beginning, data = SseParser(), b"", reads.data
    template: EventTemplate | None = None
    number = at = 0  # the next read, and the next byte of the answer
    while number < len(reads):
        if template is not None and framing.is_between and events.is_between:
            run = template.read_run(reads, number, at)
            state.add_run(run)
            at = run.end
            number = bisect_right(reads.ends, at, number)
            if number == len(reads):
                break
        if (
            framing.is_between
            and events.is_between
            and framing.status == 200
            and (event := read_single_line_event(data, at)) is not None
        ):
            event_data, at = event
            # the read that completed the event; the end of the chunk may arrive later
            completed = bisect_left(reads.ends, at - 2, number)
            _read_events(state, [SseEvent(reads.times_ns[completed], event_data)])
            template = EventTemplate.from_event(event_data) if state.is_plain_text else None
            number = bisect_right(reads.ends, at, completed)
            continue
        end = min(framing.end_of_chunk(data, at), reads.ends[number])
        for piece in framing.feed(data[at:end]):
            beginning += piece[: _DETAIL_CHARACTERS - len(beginning)]
            found = events.feed(reads.times_ns[number], piece) if framing.status in (0, 200) else []
            _read_events(state, found)
            if found:
                template = EventTemplate.from_event(found[-1].data) if state.is_plain_text else None
        at = end
        number += at == reads.ends[number]
    return beginning


def _read_events(state: _DecodeState, found: Sequence[SseEvent]) -> None:
    """Decode events in their order. Events after the end or after an error are ignored."""
    for event in found:
        state.events += 1
        if state.done or state.error[0]:
            return
        if event.data == b"[DONE]":
            state.done = True
            continue
        state.last_data = event.data
        try:
            content = json.loads(event.data.decode())
        except (ValueError, RecursionError):
            state.error = (ErrorName.MALFORMED, _shown(event.data))
            return
        if isinstance(content, dict):
            _read_one(state, event.ns, content)
        else:
            state.error = (ErrorName.MALFORMED, f"not a JSON object: {_shown(event.data)}")


def _read_one(state: _DecodeState, ns: int, content: Mapping[str, Any]) -> None:
    if content.get("error"):
        state.error = (
            ErrorName.SERVER_ERROR,
            _text(_mapping(content["error"]).get("message"))
            or "the server sent an error in the stream",
        )
        return
    if content.get("meta_info"):
        _read_meta(state, _mapping(content["meta_info"]))
    if content.get("usage"):
        _read_usage(state, _mapping(content["usage"]))
    if content.get("sglext"):
        _read_extension(state, _mapping(content["sglext"]))
    choices = content.get("choices")
    if choices is None and "text" in content:
        _read_generated(state, ns, content)
    elif isinstance(choices, list) and choices and isinstance(choices[0], dict):
        _read_choice(state, ns, choices[0], content)


def _read_generated(state: _DecodeState, ns: int, content: Mapping[str, Any]) -> None:
    """Decode an event of the /generate stream."""
    ids = content.get("output_ids")
    state.generate = True
    state.ids.append(len(ids) if isinstance(ids, list) else 0)
    state.add_event(
        ns,
        _text(content.get("text")),
        _count(_mapping(content.get("meta_info")).get("completion_tokens")),
    )


def _read_choice(
    state: _DecodeState, ns: int, choice: Mapping[str, Any], content: Mapping[str, Any]
) -> None:
    """Decode an event of an OpenAI stream that contains a choice."""
    if choice.get("meta_info"):
        _read_meta(state, _mapping(choice["meta_info"]))
    if choice.get("finish_reason"):
        _read_finish(state, choice["finish_reason"])
    state.add_event(
        ns, _choice_text(choice), _count(_mapping(content.get("usage")).get("completion_tokens"))
    )


def _read_meta(state: _DecodeState, meta: Mapping[str, Any]) -> None:
    _read_finish(state, meta.get("finish_reason"))
    _read_usage(state, meta)
    _read_speculation(state, meta)
    cached = _count(meta.get("cached_tokens"))
    state.cached_tokens = state.cached_tokens if cached is None else cached


def _read_usage(state: _DecodeState, usage: Mapping[str, Any]) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        count = _count(usage.get(name))
        if count is not None:
            setattr(state, name, count)
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    state.cached_tokens = state.cached_tokens if cached is None else cached


def _read_extension(state: _DecodeState, extension: Mapping[str, Any]) -> None:
    details = extension.get("spec_tokens_details")
    _read_speculation(
        state, _mapping(details[0] if isinstance(details, list) and details else details)
    )
    ids = extension.get("output_ids")
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        state.ids = [len(ids[0])]
    cached = _mapping(extension.get("cached_tokens_details"))
    if cached:
        state.cached_tokens = sum(
            _count(cached.get(name)) or 0 for name in ("device", "host", "storage")
        )


def _read_speculation(state: _DecodeState, source: Mapping[str, Any]) -> None:
    steps = _count(source.get("spec_verify_ct"))
    state.verify_ct = state.verify_ct if steps is None else steps
    length = source.get("spec_accept_length")
    if (
        isinstance(length, float | int)
        and not isinstance(length, bool)
        and 1 <= length < _MAX_COUNT
    ):
        state.accept_length = float(length)


def _read_finish(state: _DecodeState, reason: Any) -> None:
    """Record the finish reason. It is a text in the OpenAI APIs and {"type": text} in /generate."""
    if isinstance(reason, dict):
        reason = reason.get("type")
    if isinstance(reason, str) and reason:
        state.finish_reason = reason


def _choice_text(choice: Mapping[str, Any]) -> str:
    """Return the output text of a choice: its content, reasoning and tool calls."""
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


def _find_error(
    state: _DecodeState, is_complete: bool, failure: str, detail: str
) -> tuple[str, str]:
    if state.error[0]:
        return state.error
    ended = state.done or (is_complete and state.finish_reason != "")
    if not ended or not is_complete:
        return failure or ErrorName.TRUNCATED, detail or "the answer ended before it was complete"
    if state.finish_reason == "abort":
        return ErrorName.SERVER_ERROR, "the server aborted the request"
    if state.completion_tokens is None:
        seen = f"{state.finish_reason or 'no finish reason'}, {sum(state.has_text)} texts"
        last = _shown(state.last_data)
        return ErrorName.NO_USAGE, f"ended ({seen}) without a number of tokens; last event: {last}"
    return "", ""


def _response(state: _DecodeState, status: int, last_ns: int, kind: str, detail: str) -> Response:
    texts = state.texts
    cumulative = state.generate and _is_cumulative(texts)
    is_output = (
        bytes(text not in ("", before) for before, text in zip(["", *texts], texts, strict=False))
        if cumulative
        else state.has_text
    )
    times = _times_of_output(state.times, is_output)
    counts = (
        [state.counts.get(place) for place in compress(range(len(is_output)), is_output)]
        if state.counts
        else []
    )
    own = max(state.ids, default=0) if cumulative else sum(state.ids)
    return Response(
        status=status,
        chunk_ns=times,
        chunk_tokens=_differences(counts, state.completion_tokens),
        last_ns=last_ns,
        prompt_tokens=state.prompt_tokens,
        completion_tokens=state.completion_tokens,
        cached_tokens=state.cached_tokens,
        verify_ct=_verify_ct(state),
        own_tokens=own or len(times),
        own_is_exact=own > 0,
        finish_reason=state.finish_reason,
        text=(texts[-1] if texts else "") if cumulative else "".join(texts),
        error_kind=kind,
        error_detail=detail[:_DETAIL_CHARACTERS],
    )


def _times_of_output(times: array[int], is_output: bytes | bytearray) -> array[int]:
    """Return the times of the events with output."""
    begin, end = is_output.find(1), is_output.rfind(1) + 1
    if is_output.count(1) == end - begin:
        return times[begin:end]
    return array("q", list(compress(times, is_output)))


def _is_cumulative(texts: Sequence[str]) -> bool:
    """Return whether each text begins with the text before it, as in /generate without incremental
    streaming. An incomplete character at the end may change in the next text.
    """
    return all(later.startswith(text.rstrip("\ufffd")) for text, later in pairwise(texts))


def _differences(counts: Sequence[int | None], total: int | None) -> array[int] | None:
    """Return the number of tokens in each chunk, computed from the cumulative counts. Return None
    if a count is missing or falls. Tokens without text count for the next chunk, or for the last
    chunk if no other chunk follows.
    """
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    if total is not None and total > known[-1]:
        known[-1] = total
    steps = array("i", map(sub, known, [0, *known]))
    return steps if min(steps) >= 0 else None


def _verify_ct(state: _DecodeState) -> int | None:
    """Return the number of verify steps. For old servers it is computed from the accept length,
    which is completion tokens / verify steps.
    """
    if state.verify_ct is None and state.accept_length and state.completion_tokens:
        return max(1, round(state.completion_tokens / state.accept_length))
    return state.verify_ct or None


def _count(value: Any) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
        else None
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _shown(data: bytes) -> str:
    return data[:_DETAIL_CHARACTERS].decode("utf-8", "replace")
