"""Promises of the decoder: whatever the network does to an answer, its counts are the server's, and
a part is never the whole.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.client import http_framing
from fleet_agent.load.client import response_decoder as decoder
from fleet_agent.load.client.received import RecordedReads
from fleet_agent.load.client.request_record import Response
from fleet_agent.load.client.sse import SseParser
from tests.fakes import streams
from tests.fakes.native import WAYS, reading

TEXTS = [" one", "", " zwölf", " 日本", "\n\n", " 🙂", "end"]
CHAT = streams.chat(TEXTS, tokens=19, steps=7, cached=4, ids=19)
GENERATE = streams.generate([("", 1), (" zwei", 2), ("", 1), (" 日", 4)], cached=3, verify=5)
CRLF = streams.HEAD + b"".join(
    streams.chunk(part.replace(b"\n", b"\r\n")) for part in [b": ping\n\n", *streams.chat_events(TEXTS, tokens=19), streams.DONE]
) + streams.LAST_CHUNK  # fmt: skip
ANSWERS = {"chat": CHAT, "generate": GENERATE, "crlf": CRLF}


@pytest.fixture(params=WAYS, autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with reading(request.param) as chosen:
        yield chosen


def decode(
    pairs: Iterable[tuple[int, bytes]], *, closed: bool, failure: str = "", detail: str = ""
) -> Response:
    return decoder.decode_response(
        RecordedReads.from_pairs(pair for pair in pairs if pair[1]),
        closed=closed,
        failure=failure,
        detail=detail,
    )


def at_once(content: bytes) -> Response:
    return decode([(7, content)], closed=False)


def pieces(content: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    places = [0, *sorted({cut % len(content) for cut in cuts}), len(content)]
    return [(end, content[start:end]) for start, end in pairwise(places) if end > start]


def without_times(response: Response) -> Response:
    return replace(response, chunk_ns=array("q", [0] * len(response.chunk_ns)), last_ns=0)


@pytest.mark.parametrize("name", ANSWERS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=60))
def test_an_answer_reads_the_same_however_it_is_cut(name: str, cuts: list[int]) -> None:
    whole = at_once(ANSWERS[name])
    assert whole.error_kind == ""
    assert without_times(decode(pieces(ANSWERS[name], cuts), closed=False)) == without_times(whole)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_reads_the_same_byte_by_byte_and_each_time_is_that_of_the_completing_byte(
    name: str,
) -> None:
    content = ANSWERS[name]
    read = decode(pieces(content, list(range(len(content)))), closed=False)
    assert without_times(read) == without_times(at_once(content))
    ends = [at for at in range(1, len(content) + 1) if content[:at].endswith((b"\n\n", b"\r\n\r"))]
    assert read.last_ns == len(content)
    assert set(read.chunk_ns) <= set(ends)
    assert list(read.chunk_ns) == sorted(set(read.chunk_ns))


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("closed", [True, False])
def test_no_part_of_an_answer_is_ever_a_success(name: str, closed: bool) -> None:
    content = ANSWERS[name]
    kinds = {
        decode([(1, content[:size])], closed=closed).error_kind for size in range(1, len(content))
    }
    assert kinds == {"truncated"}


@given(st.lists(st.binary(max_size=80), max_size=20), st.booleans())
def test_any_bytes_are_read_without_an_exception_and_never_as_success(
    parts: list[bytes], closed: bool
) -> None:
    assert decode([(1, part) for part in parts], closed=closed).error_kind


@given(st.data())
def test_a_damaged_answer_never_raises_and_never_gives_an_impossible_count(
    data: st.DataObject,
) -> None:
    content = bytearray(data.draw(st.sampled_from(list(ANSWERS.values()))))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read = decode([(1, bytes(content))], closed=True)
    for count in (read.prompt_tokens, read.completion_tokens, read.cached_tokens, read.verify_ct):
        assert count is None or 0 <= count < 2**31


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "delta", "text", "usage", "meta_info", "sglext", "output_ids", "completion_tokens", "finish_reason", "tool_calls",
         "function", "arguments", "content", "spec_tokens_details", "spec_verify_ct", "cached_tokens_details", "error", "type"]
    ), inner, max_size=6),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON, max_size=4))
def test_any_json_in_the_events_is_read_without_an_exception(contents: list[object]) -> None:
    found = [b"data: " + json.dumps(content).encode() + b"\n\n" for content in contents]
    read = decode([(1, streams.answer(found))], closed=False)
    assert read.completion_tokens is None or 0 <= read.completion_tokens < 2**31


def test_tokens_are_the_servers_count_and_not_the_chunks() -> None:
    read = at_once(streams.chat([" a b c", " d e"], tokens=11, steps=4))
    assert (len(read.chunk_ns), read.completion_tokens, read.verify_ct, read.chunk_tokens) == (
        2,
        11,
        4,
        None,
    )


def test_role_and_empty_text_are_no_first_output() -> None:
    parts = [
        streams.HEAD,
        *map(streams.chunk, streams.chat_events(["", "", "x", ""])),
        streams.chunk(streams.DONE),
        streams.LAST_CHUNK,
    ]
    read = decode([(index, part) for index, part in enumerate(parts)], closed=False)
    assert (read.error_kind, read.first_output_ns, list(read.chunk_ns)) == ("", 4, [4])


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": None}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ],
)
def test_content_reasoning_and_tool_calls_are_all_output(fields: dict[str, Any]) -> None:
    read = at_once(
        streams.answer([streams.delta(**fields), streams.delta(finish="length"), *streams.tail(1)])
    )
    assert (read.error_kind, len(read.chunk_ns)) == ("", 1)


def test_generate_gives_tokens_of_each_chunk_and_tokens_without_text_go_to_the_next() -> None:
    read = at_once(
        streams.generate([("", 1), ("ab", 2), ("", 1), ("cd", 3), ("", 1)], verify=4, cached=6)
    )
    assert (read.chunk_tokens, read.completion_tokens, read.own_tokens, read.own_is_exact) == (
        array("i", [3, 5]),
        8,
        8,
        True,
    )
    assert (read.text, read.verify_ct, read.cached_tokens, read.finish_reason) == (
        "abcd",
        4,
        6,
        "length",
    )


def test_generate_with_increments_instead_of_repeats_is_understood() -> None:
    parts = [(" the", 1), (" the", 2), (" cat", 3)]
    found = [
        streams.event({
            "text": text, "output_ids": [count],
            "meta_info": {"finish_reason": {"type": "length"} if count == 3 else None, "completion_tokens": count, "prompt_tokens": 2},
        })
        for text, count in parts
    ]  # fmt: skip
    read = at_once(streams.answer(found))
    assert (read.text, read.own_tokens, read.chunk_tokens) == (
        " the the cat",
        3,
        array("i", [1, 1, 1]),
    )


def test_half_a_character_that_changes_later_is_still_one_growing_text() -> None:
    found = [
        streams.event(
            {
                "text": text,
                "output_ids": [1] * count,
                "meta_info": {"completion_tokens": count, "finish_reason": reason},
            }
        )
        for text, count, reason in [
            ("a�", 1, None),
            ("aé", 2, None),
            ("aéb", 3, {"type": "length"}),
        ]
    ]
    read = at_once(streams.answer(found))
    assert (read.text, read.chunk_tokens, read.own_tokens) == ("aéb", array("i", [1, 1, 1]), 3)


def test_token_ids_of_a_chat_answer_are_counted_by_ourselves() -> None:
    read = at_once(streams.chat(["a", "b"], tokens=9, ids=8))
    assert (read.completion_tokens, read.own_tokens, read.own_is_exact) == (9, 8, True)


@pytest.mark.parametrize("length", [1e-320, 0.5, -1, float("inf"), True, "2.4"])
def test_an_accept_length_that_cannot_be_gives_no_steps(length: object) -> None:
    meta = {
        "completion_tokens": 12,
        "prompt_tokens": 3,
        "spec_accept_length": length,
        "finish_reason": {"type": "length"},
    }
    body = [streams.event({"text": "a", "output_ids": [1], "meta_info": meta}), streams.DONE]
    assert at_once(streams.answer(body)).verify_ct is None


def test_an_accept_length_without_a_step_count_gives_the_steps() -> None:
    meta = {
        "completion_tokens": 12,
        "prompt_tokens": 3,
        "spec_accept_length": 2.4,
        "finish_reason": {"type": "length"},
    }
    assert at_once(streams.answer([streams.event({"text": "x", "meta_info": meta})])).verify_ct == 5


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy", "http_status", 503),
        (b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n4\r\nno!!\r\n0\r\n\r\n", "http_status", 400),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"choices": []}', "malformed", 200),
        (b"220 mail.example ESMTP\r\n\r\n", "malformed", 0),
        (streams.HEAD + b"zz\r\n", "malformed", 200),
        (streams.HEAD + b"3\r\nabcdef\r\n", "malformed", 200),
        (streams.chat(["a"]) + b"extra", "malformed", 200),
        (streams.answer([b"data: {not json}\n\n"]), "malformed", 200),
        (streams.answer([b"data: [1]\n\n"]), "malformed", 200),
        (streams.answer([streams.event({"error": {"message": "out of memory", "code": 500}})]), "server_error", 200),
        (streams.chat(["a"], finish="abort"), "server_error", 200),
        (streams.answer([streams.delta(content="a"), streams.delta(finish="length")]), "no_usage", 200),
        (streams.HEAD + streams.LAST_CHUNK, "truncated", 200),
    ],
)  # fmt: skip
def test_each_kind_of_bad_answer_has_its_name(content: bytes, kind: str, status: int) -> None:
    read = decode([(1, content)], closed=True)
    assert (read.error_kind, read.status) == (kind, status)


def test_an_answer_without_usage_fails_with_what_was_seen_instead() -> None:
    events = [streams.delta(content="a"), streams.delta(content="b"), streams.delta(finish="stop")]
    failed = at_once(streams.answer(events))
    assert failed.error_kind == "no_usage"
    assert failed.error_detail.startswith(
        'ended (stop, 2 texts) without a number of tokens; last event: {"'
    )
    assert "stop" in failed.error_detail.partition("last event")[2]


def test_the_servers_own_words_are_kept() -> None:
    assert decode(
        [(1, b"HTTP/1.1 503 No\r\ncontent-length: 9\r\n\r\nqueue full")], closed=True
    ).error_detail
    assert (
        at_once(b"HTTP/1.1 503 No\r\ncontent-length: 10\r\n\r\nqueue full").error_detail
        == "queue full"
    )
    page = at_once(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n<html>log in")
    assert page.error_detail == "not an event stream: <html>log in"


def test_an_answer_that_ends_with_its_connection_is_whole_only_when_it_closed() -> None:
    content = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"".join(
        [*streams.chat_events(["a"]), streams.DONE]
    )
    assert decode([(1, content)], closed=True).error_kind == ""
    assert decode([(1, content)], closed=False).error_kind == "truncated"


def test_what_the_client_saw_stands_only_while_the_answer_is_incomplete() -> None:
    assert decode([(1, CHAT)], closed=True, failure="reset").error_kind == ""
    assert (
        decode([(1, CHAT[:-1])], closed=True, failure="reset", detail="gone").error_kind == "reset"
    )


@pytest.mark.parametrize("many", [1, 2, 5000])
def test_interim_answers_are_skipped_however_many(many: int) -> None:
    assert at_once(many * b"HTTP/1.1 100 Continue\r\n\r\n" + CHAT).error_kind == ""


def test_chunk_extensions_and_trailers_are_read() -> None:
    body = b"".join([*streams.chat_events(["a"]), streams.DONE])
    content = streams.HEAD + b"%X;name=value\r\n%b\r\n0\r\nx-trailer: 1\r\n\r\n" % (len(body), body)
    assert at_once(content).error_kind == ""


def test_events_know_comments_several_data_lines_and_lone_carriage_returns() -> None:
    events = SseParser()
    parts = [
        (1, b": hello\r\rdata: a\rdata:b\r"),
        (2, b"\rid: 4\n\nevent: x\ndata: c\n\ndata: cut"),
    ]
    found = [event for ns, part in parts for event in events.feed(ns, part)]
    assert [(one.ns, one.data) for one in found] == [(2, b"a\nb"), (2, b"c")]


ODD = ["", '"', "\\", "\n", '","x":"', "\u0001mark", "a\u2028"]
SPOKEN = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(ODD)


@given(
    texts=st.lists(SPOKEN, max_size=30),
    ascii_only=st.booleans(),
    field=st.sampled_from(["content", "reasoning_content"]),
)
def test_reads_that_are_alike_say_what_reading_them_as_json_says(
    texts: list[str], ascii_only: bool, field: str
) -> None:
    """Chunk by chunk the shortcut is taken where it may be; in lines that CRLF ends it never is."""
    events = [
        json.dumps(
            {"choices": [{"index": 0, "delta": {"role": None, field: text}}]},
            ensure_ascii=ascii_only,
        )
        for text in texts
    ]
    usage = streams.event({"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 1}})
    ends = [streams.delta(finish="length"), usage, streams.DONE]

    def answer(line_end: bytes) -> list[bytes]:
        said = [b"data: " + event.encode() + 2 * line_end for event in events]
        return [streams.HEAD, *map(streams.chunk, [*said, *ends]), streams.LAST_CHUNK]

    apart, as_json = (
        decode(enumerate(answer(line_end)), closed=False) for line_end in (b"\n", b"\r\n")
    )
    together = decode([(0, b"".join(answer(b"\n")))], closed=False)
    assert apart == replace(as_json, last_ns=apart.last_ns)
    assert without_times(apart) == without_times(together)
    assert apart.text == "".join(texts)
    assert list(apart.chunk_ns) == [number for number, text in enumerate(texts, 1) if text]


@given(
    texts=st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    cuts=st.lists(st.integers(0, 10_000), max_size=40),
)
def test_the_end_that_sizes_of_chunks_tell_is_the_end_of_the_answer(
    texts: list[bytes], cuts: list[int]
) -> None:
    content = (
        streams.HEAD + b"".join(map(streams.chunk, [*texts, b"0\r\n\r\n"])) + streams.LAST_CHUNK
    )
    frame, ending, came = http_framing.HttpFraming(), None, 0
    for _, piece in pieces(content, cuts):
        came += len(piece)
        if ending is None:
            frame.feed(piece)
            ahead = frame.next_chunk()
            ending = ahead and http_framing.ChunkedEnd(*ahead)
            found = (
                http_framing.ANSWER_AT_END
                if frame.state == http_framing.ENDED
                else http_framing.ANSWER_GOES_ON
            )
        else:
            found = ending.feed(piece)
        if (
            found == http_framing.ANSWER_NEEDS_PARSING
        ):  # the last line itself may be cut, which only the whole tells
            assert came >= len(content) - len(streams.LAST_CHUNK)
            return
        assert (found == http_framing.ANSWER_AT_END) == (came == len(content))


@pytest.mark.parametrize(
    "after",
    [
        b"zz\r\n",
        b"-5\r\nabc",
        b"0\r\nx-trailer: 1\r\n\r\n",
        b"5;name=1\r\nhello\r\n",
        b"\r\n",
        b"f" * 5000,
    ],
)
def test_what_sizes_alone_do_not_tell_is_looked_at_closer(after: bytes) -> None:
    assert http_framing.ChunkedEnd(0, b"").feed(after) == http_framing.ANSWER_NEEDS_PARSING
