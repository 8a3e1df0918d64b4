"""Owns a second reading of an answer, slow and plain, to hold the load client's decoder against:
byte by byte, from the standards.

HTTP/1.1 chunks by RFC 9112 section 7.1, events by the WHATWG's server-sent events, counts by
docs/metrics.md. It shares no code with the client and skips nothing that looks like what came
before.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

MOST_COUNT: Final = 2**31 - 1
HEAD_LIMIT: Final = 64 * 1024
LINE_LIMIT: Final = 4096
SIZE_DIGITS: Final = 12


class Unsound(Exception):
    """The bytes are no HTTP/1.1 answer."""


@dataclass
class Read:
    """What an answer said. `ok`: it is whole, without an error in it, and told its tokens; the
    other fields count only then.
    """

    ok: bool = False
    chunk_at: list[int] = field(
        default_factory=list
    )  # place of the byte that completed each event with output
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str = ""
    text: str = ""


def read(answer: bytes) -> Read:
    """Read a chunked answer that the server did not close."""
    try:
        status, start = _head(answer)
        body, whole = _body(answer, start)
    except Unsound:
        return Read()
    return Read() if status != 200 else _told(list(_events(body)), whole)


def _head(answer: bytes) -> tuple[int, int]:
    """(status, where the body starts); (0, …) when it has not all come."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return 0, len(answer)
    first = answer[:end].split(b"\r\n")[0].split(b" ", 2)
    if (
        len(first) < 2
        or not first[0].startswith(b"HTTP/1.")
        or not (len(first[1]) == 3 and first[1].isdigit())
    ):
        raise Unsound("status line")
    return int(first[1]), end + 4


def _body(answer: bytes, at: int) -> tuple[list[tuple[int, int]], bool]:
    """Its content as (byte, place in the answer), and whether the last chunk and the trailers came.
    Raises Unsound.
    """
    content: list[tuple[int, int]] = []
    while True:
        line, at = _line(answer, at)
        if line is None:
            return content, False
        size = line.split(b";")[0].strip()
        if (
            not size
            or len(size) > SIZE_DIGITS
            or any(chr(byte) not in string.hexdigits for byte in size)
        ):
            raise Unsound("chunk size")
        left = int(size, 16)
        if not left:
            return content, _trailers(answer, at)
        content += [(answer[place], place) for place in range(at, min(at + left, len(answer)))]
        at += left
        if at >= len(answer):
            return content, False
        line, at = _line(answer, at)
        if line is None:
            return content, False
        if line:
            raise Unsound("a chunk longer than its size")


def _trailers(answer: bytes, at: int) -> bool:
    while True:
        line, at = _line(answer, at)
        if line is None:
            return False
        if not line:
            if at < len(answer):
                raise Unsound("bytes after the end")
            return True


def _line(answer: bytes, at: int) -> tuple[bytes | None, int]:
    """(the line from `at` without its end, the place after it); (None, …) when its end has not
    come. Raises Unsound for an endless one.
    """
    end = answer.find(b"\r\n", at)
    if end < 0:
        if len(answer) - at > LINE_LIMIT:
            raise Unsound("endless line")
        return None, at
    return answer[at:end], end + 2


def _events(body: Sequence[tuple[int, int]]) -> Iterator[tuple[bytes, int]]:
    """(data, place of the byte that completed it) of each event that has data."""
    data: list[bytes] = []
    for line, place in _lines(body):
        if line:
            name, colon, value = line.partition(b":")
            if colon and name == b"data":
                data.append(value.removeprefix(b" "))
        else:
            joined = b"\n".join(data)
            data = []
            if joined:
                yield joined, place


def _lines(body: Sequence[tuple[int, int]]) -> Iterator[tuple[bytes, int]]:
    """(line, place of the byte that ended it): LF, CR and CRLF each end one, and the LF of a CRLF
    says nothing new.
    """
    line = bytearray()
    after_cr = False
    for byte, place in body:
        if byte == 10 and after_cr:
            after_cr = False
            continue
        after_cr = byte == 13
        if byte in (10, 13):
            yield bytes(line), place
            line.clear()
        else:
            line.append(byte)


def _told(events: list[tuple[bytes, int]], whole: bool) -> Read:
    found, texts, done, generate = Read(), list[tuple[str, int]](), False, False
    for data, place in events:
        if data == b"[DONE]":
            done = True
            break
        try:
            content = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            return Read()
        if not isinstance(content, dict) or content.get("error"):
            return Read()
        _counts(found, content)
        choices = content.get("choices")
        if choices is None and "text" in content:
            generate = True
            texts.append((_string(content["text"]), place))
        elif isinstance(choices, list) and choices and isinstance(choices[0], dict):
            texts.append((_output(found, choices[0]), place))
    _output_of(found, texts, cumulative=generate and _repeats(texts))
    ended = whole and (done or found.finish_reason != "")
    found.ok = ended and found.finish_reason != "abort" and found.completion_tokens is not None
    return found


def _counts(found: Read, content: dict[str, Any]) -> None:
    """The newest word of each count stands."""
    for source in (content.get("meta_info"), content.get("usage")):
        if not isinstance(source, dict):
            continue
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            value = source.get(name)
            if name == "cached_tokens" and source is not content.get("meta_info"):
                details = source.get("prompt_tokens_details")
                value = details.get("cached_tokens") if isinstance(details, dict) else None
            if type(value) is int and 0 <= value <= MOST_COUNT:
                setattr(found, name, value)
    meta = content.get("meta_info")
    if isinstance(meta, dict):
        _finish(found, meta.get("finish_reason"))


def _finish(found: Read, reason: Any) -> None:
    reason = reason.get("type") if isinstance(reason, dict) else reason
    if isinstance(reason, str) and reason:
        found.finish_reason = reason


def _output(found: Read, choice: dict[str, Any]) -> str:
    _finish(found, choice.get("finish_reason"))
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    values = (
        choice.get("text"),
        *(delta.get(name) for name in ("content", "reasoning_content", "reasoning")),
    )
    return "".join(map(_string, values))


def _repeats(texts: list[tuple[str, int]]) -> bool:
    """/generate: each event holds the text before it, but for a character that was cut at its end."""
    return all(later.startswith(text.rstrip("\ufffd")) for (text, _), (later, _) in pairwise(texts))


def _output_of(found: Read, texts: list[tuple[str, int]], *, cumulative: bool) -> None:
    before = ""
    for text, place in texts:
        if text and not (cumulative and text == before):
            found.chunk_at.append(place)
        before = text
        found.text = text if cumulative else found.text + text


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
