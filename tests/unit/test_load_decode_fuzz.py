"""Promises of the decoder under anything that a network or a server may do: no exception, no hang,
never a wrong count.

Real streams are built from events, changed (lost, doubled, late, damaged, framed otherwise), cut
into reads anywhere, and held against a second reading that shares no code with the decoder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from fleet_agent.load.client.received import RecordedReads
from fleet_agent.load.client.request_record import Response
from fleet_agent.load.client.response_decoder import decode_response
from tests.fakes import reference_decoder, streams
from tests.fakes.native import WAYS, reading

MIB = 1 << 20
EXAMPLES = 150
SLOW_S = 5.0  # on a busy machine; what is not bounded takes minutes
TEXTS = [
    " one",
    " tok",
    "",
    " zwölf",
    " 日本",
    "🙂",
    "\n\n",
    "data: x",
    '"quoted"',
    "\\",
    "\u0000",
    "\ufffd",
    "\r\n0\r\n\r\n",
    "[DONE]",
]
ENDS = [b"\n", b"\r\n", b"\r"]
NOISE = [
    b": ping\n",
    b"\n",
    b"event: message\n",
    b"id: 7\nretry: 100\n",
    b"data\n",
    b"datum: {}\n",
    b":\n\n",
    b"data: \n\n",
]
BODIES = [
    b"data: {}\n\n", b"data: null\n\n", b"data: [1]\n\n", b"data: {\n\n", b'data: {"error": {"message": "no"}}\n\n', b"data: \xff\xfe\n\n",
    b"data: \0\n\n",
    b'data: {"choices": []}\n\n', b'data: {"choices": [{"index": 0}]}\n\n', b'data: {"usage": {"completion_tokens": -1}}\n\n',
    b'data: {"usage": {"completion_tokens": 99999999999999999999}}\n\n', b'data: {"usage": {"completion_tokens": true}}\n\n',
    b'data: {"text": 5}\n\n', b'data: {"choices": {"0": 1}}\n\n', b"data: " + b"[" * 5000 + b"\n\n",
]  # fmt: skip
LASTS = [
    *[b"0\r\n\r\n"] * 4,
    b"0\r\nX-Trailer: 1\r\n\r\n",
    b"000;x=y\r\n\r\n",
    b"0\r\n\r\n0\r\n\r\n",
    b"0\r\n",
    b"",
]
SIZES = [
    b"-1",
    b"+4",
    b"0x10",
    b"",
    b" ",
    b"ffffffffffff",
    b"fffffffffffff",
    b"00000000000a",
    b"g",
    b"1_0",
    b"\xd9\xa1",
    b"7fffffff",
]


@pytest.fixture(params=WAYS, autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with reading(request.param) as chosen:
        yield chosen


def completion(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return streams.event(
        {"id": "c1", "object": "text_completion", "choices": [choice], "usage": None}
    )


def generated(texts: Sequence[str], *, cumulative: bool) -> list[bytes]:
    """Events of /generate, which repeat the text unless the server streams increments."""
    events, all_text = [], ""
    for number, text in enumerate(texts):
        all_text += text
        last = number == len(texts) - 1
        meta = {
            "finish_reason": {"type": "length", "length": number + 1} if last else None,
            "prompt_tokens": 9,
        }
        meta |= {"completion_tokens": number + 1, "cached_tokens": 2}
        events.append(
            streams.event(
                {
                    "text": all_text if cumulative else text,
                    "output_ids": [number],
                    "meta_info": meta,
                }
            )
        )
    return events


@st.composite
def events(draw: st.DrawFn) -> list[bytes]:
    """A sound stream of one of the APIs, its end included."""
    texts = draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=12))
    texts *= draw(st.sampled_from([1, 1, 8]))
    match draw(st.sampled_from(["chat", "completions", "generate", "increments"])):
        case "chat":
            found = streams.chat_events(
                texts, cached=draw(st.sampled_from([0, 3])), ids=draw(st.sampled_from([0, 5]))
            )
        case "completions":
            found = [*map(completion, texts), completion("", "length"), *streams.tail(len(texts))]
        case api:
            found = generated(texts, cumulative=api == "generate")
    return [*found, streams.DONE]


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    """A stream with up to three changes."""
    found = draw(events())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(found) - 1))
        change = draw(
            st.sampled_from(["lose", "double", "late"])
            | st.sampled_from(["other", "noise", "byte", "split"])
        )
        found = (
            _moved(found, at, change)
            if change in ("lose", "double", "late")
            else _altered(draw, found, at, change)
        )
    return found


def _moved(found: list[bytes], at: int, change: str) -> list[bytes]:
    """Without the event, with it twice, or with it last."""
    before, one, after = found[:at], found[at : at + 1], found[at + 1 :]
    return {
        "lose": [*before, *after] or one,
        "double": [*before, *one, *one, *after],
        "late": [*before, *after, *one],
    }[change]


def _altered(draw: st.DrawFn, found: list[bytes], at: int, change: str) -> list[bytes]:
    """With something else before the event, or another byte in it, or over two lines."""
    one = found[at]
    place = draw(st.integers(0, len(one) - 1))
    other = {
        "other": draw(st.sampled_from(BODIES)) + one,
        "noise": draw(st.sampled_from(NOISE)) + one,
        "byte": one[:place] + bytes([draw(st.integers(0, 255))]) + one[place + 1 :],
        "split": one.replace(b',"', b',\ndata:"', 1),
    }
    return [*found[:at], other[change], *found[at + 1 :]]


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A whole answer, framed in some way, perhaps cut, perhaps with bytes behind it."""
    body = draw(damaged())
    end = draw(st.sampled_from([*ENDS, None]))
    body = [part.replace(b"\n", end or draw(st.sampled_from(ENDS))) for part in body]
    cuts = draw(st.lists(st.integers(0, 5000), max_size=8))
    pieces = draw(st.sampled_from([body, [b"".join(body)], _cut(b"".join(body), cuts)]))
    framed = [_chunk(draw, piece) for piece in pieces if piece]
    last = draw(st.sampled_from(LASTS))
    whole = streams.HEAD + b"".join(framed) + last
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.integers(0, 4)) == 0 else whole


def _chunk(draw: st.DrawFn, content: bytes) -> bytes:
    size = draw(st.sampled_from([b"%x"] * 12 + [b"%X", b"000%x", b"%x;ext=1", b" %x ", *SIZES]))
    return (size % len(content) if b"%" in size else size) + b"\r\n" + content + b"\r\n"


def _cut(content: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted({cut % len(content) for cut in cuts} - {0}), len(content)]
    return [content[start:end] for start, end in pairwise(places)]


def timed(content: bytes, cuts: Sequence[int]) -> list[tuple[int, bytes]]:
    """Reads that are cut there, each at the time of the place of its last byte, plus one."""
    found, at = [], 0
    for piece in _cut(content, cuts) if content else []:
        at += len(piece)
        found.append((at, piece))
    return found


def decoded(content: bytes, cuts: Sequence[int]) -> Response:
    return decode_response(RecordedReads.from_pairs(timed(content, cuts)), closed=False)


def assert_as_read(content: bytes, cuts: Sequence[int]) -> Response:
    """The decoder says what the second reading says; of an answer that is no success both say only
    that.
    """
    response, expected = decoded(content, cuts), reference_decoder.read(content)
    assert (not response.error_kind) == expected.ok, (response.error_kind, response.error_detail)
    if expected.ok:
        ends = [at for at, _ in timed(content, cuts)]
        assert response.completion_tokens == expected.completion_tokens
        assert (response.prompt_tokens, response.finish_reason) == (
            expected.prompt_tokens,
            expected.finish_reason,
        )
        assert response.text == expected.text
        assert list(response.chunk_ns) == [
            next(end for end in ends if end > place) for place in expected.chunk_at
        ]
        if response.chunk_tokens is not None:
            assert len(response.chunk_tokens) == len(response.chunk_ns)
            assert sum(response.chunk_tokens) == response.completion_tokens
            assert min(response.chunk_tokens) >= 0
    return response


@settings(max_examples=EXAMPLES, deadline=None)
@given(answers(), st.lists(st.integers(0, 20_000), max_size=40))
def test_a_changed_stream_is_read_as_a_second_reader_reads_it(
    content: bytes, cuts: list[int]
) -> None:
    event(assert_as_read(content, cuts).error_kind or "success")


@settings(max_examples=EXAMPLES, deadline=None)
@given(events(), st.lists(st.integers(0, 20_000), max_size=40))
def test_a_sound_stream_is_a_success_however_it_is_cut(sound: list[bytes], cuts: list[int]) -> None:
    assert assert_as_read(streams.answer(sound[:-1]), cuts).error_kind == ""


@settings(max_examples=50, deadline=None)
@given(events())
def test_a_sound_stream_reads_the_same_byte_by_byte(sound: list[bytes]) -> None:
    content = streams.answer(sound[:-1])
    assert_as_read(content, range(len(content)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=400), st.booleans())
@example(b"\r\n\r\n", True)
@example(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999\r\n\r\nx", False)
def test_bytes_that_mean_nothing_are_never_a_success(content: bytes, closed: bool) -> None:
    for head in (b"", streams.HEAD):
        assert decode_response(
            RecordedReads.from_pairs(timed(head + content, [3, 77])), closed=closed
        ).error_kind


@pytest.mark.parametrize("size", [1448, 65536], ids=["packets", "full reads"])
def test_a_line_of_many_mebibytes_takes_no_longer_than_its_bytes(size: int) -> None:
    text = "x" * (16 * MIB)
    content = streams.chat(["a", text, "b"])
    reads = [(at, content[at : at + size]) for at in range(0, len(content), size)]
    began_s = time.process_time()
    response = decode_response(RecordedReads.from_pairs(reads), closed=False)
    assert time.process_time() - began_s < SLOW_S
    assert (
        response.error_kind,
        response.completion_tokens,
        len(response.chunk_ns),
        len(response.text),
    ) == ("", 3, 3, len(text) + 2)


def test_a_line_without_an_end_takes_no_longer_than_its_bytes() -> None:
    content = streams.HEAD + b"7fffffff\r\ndata: " + b"y" * (16 * MIB)
    reads = [(at, content[at : at + 1448]) for at in range(0, len(content), 1448)]
    began_s = time.process_time()
    assert decode_response(RecordedReads.from_pairs(reads), closed=False).error_kind == "truncated"
    assert time.process_time() - began_s < SLOW_S


def test_a_mebibyte_of_line_ends_and_comments_says_nothing() -> None:
    content = streams.HEAD + streams.chunk(b"\r\n" * MIB + b":\n" * MIB) + streams.LAST_CHUNK
    began_s = time.process_time()
    assert (
        decode_response(
            RecordedReads.from_pairs(timed(content, range(0, len(content), 4096))), closed=False
        ).error_kind
        == "malformed"
    )
    assert time.process_time() - began_s < SLOW_S
