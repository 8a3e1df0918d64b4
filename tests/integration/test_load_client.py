"""Promises of the client on real sockets: every way an answer can go wrong is a recorded failure,
never an exception or a success.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.client.request_record import Response
from fleet_agent.load.client.response_decoder import decode_response
from fleet_agent.load.client.server_cache import flush_prefix_cache, probe_template_tokens
from fleet_agent.load.client.timed_http_client import Endpoint, Exchange
from fleet_agent.load.workers.shard import run_shard
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult
from fleet_agent.load.workload.prompts import PromptDraw
from tests.fakes import streams
from tests.fakes.native import WAYS, reading
from tests.fakes.scripted_server import (
    CLOSE,
    RESET,
    SILENCE,
    Script,
    ScriptedServer,
    scripted_server,
    served,
)
from tests.fakes.simulated_server import free_port

REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
CHAT = streams.chat([" a", " b", " c"], tokens=9)
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with reading(request.param) as chosen:
        yield chosen


def read(exchange: Exchange) -> Response:
    return decode_response(
        exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail
    )


async def once(*script: bytes | str, timeout_s: float = 5) -> Response:
    async with scripted_server(script) as server:
        endpoint = Endpoint(server.url)
        exchange = await endpoint.exchange(REQUEST, timeout_s)
        endpoint.close()
        return read(exchange)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ((CHAT,), ""),
        ((BUSY,), "http_status"),
        ((CLOSE,), "reset"),
        ((RESET,), "reset"),
        ((CHAT[:200], RESET), "reset"),
        ((CHAT[:-1], RESET), "reset"),
        ((CHAT[:200], CLOSE), "truncated"),
        ((CHAT[:-1], CLOSE), "truncated"),
        ((b"nonsense\r\n\r\n", CLOSE), "malformed"),
        ((streams.answer([b"data: {\n\n"]),), "malformed"),
        ((streams.answer([streams.event({"error": {"message": "no memory"}})]),), "server_error"),
        ((streams.answer([streams.delta(content="x"), streams.delta(finish="length")]),), "no_usage"),
    ],
)  # fmt: skip
async def test_each_end_of_an_answer_has_its_name(script: Script, kind: str) -> None:
    assert (await once(*script)).error_kind == kind


async def test_a_server_that_is_not_there_is_a_recorded_failure() -> None:
    exchange = await Endpoint(f"http://127.0.0.1:{free_port()}").exchange(REQUEST, 5)
    assert (read(exchange).error_kind, len(exchange.reads)) == ("connect", 0)


async def test_silence_before_an_answer_is_a_timeout_and_silence_within_one_is_a_stall() -> None:
    assert (await once(SILENCE, timeout_s=0.2)).error_kind == "timeout"
    stalled = await once(CHAT[:-60], SILENCE, timeout_s=0.2)
    assert (stalled.error_kind, len(stalled.chunk_ns)) == ("stalled", 3)


async def test_an_answer_in_single_bytes_is_found_complete_without_waiting_for_a_close() -> None:
    response = await once(*(CHAT[at : at + 1] for at in range(len(CHAT))), SILENCE)
    assert (response.error_kind, response.completion_tokens, len(response.chunk_ns)) == ("", 9, 3)


async def test_content_that_looks_like_the_end_of_the_body_does_not_end_it() -> None:
    cut = streams.HEAD + streams.chunk(b": a comment\r\n0\r\n\r\n")
    rest = (
        b"".join(map(streams.chunk, [*streams.chat_events(["x"]), streams.DONE]))
        + streams.LAST_CHUNK
    )
    assert (await once(cut, rest)).error_kind == ""


async def test_a_connection_is_used_again_and_a_lost_one_is_not() -> None:
    async with scripted_server((CHAT,), (CHAT, CLOSE), (CHAT,)) as server:
        endpoint = Endpoint(server.url)
        kinds = [read(await endpoint.exchange(REQUEST, 5)).error_kind for _ in range(2)]
        async with asyncio.timeout(5):
            while endpoint.idle:  # noqa: ASYNC110 - the loop itself brings the news of the close
                await asyncio.sleep(0)
        kinds.append(read(await endpoint.exchange(REQUEST, 5)).error_kind)
        endpoint.close()
        assert (kinds, server.connections) == (["", "", ""], 2)


async def test_times_are_those_of_the_reads_on_the_monotonic_clock() -> None:
    before = perf_counter_ns()
    async with scripted_server((CHAT,)) as server:
        endpoint = Endpoint(server.url)
        exchange = await endpoint.exchange(REQUEST, 5)
        endpoint.close()
    assert (
        before
        < exchange.sent_ns
        < exchange.reads.times_ns[0]
        <= exchange.reads.last_ns
        < perf_counter_ns()
    )


@pytest.mark.parametrize("url", ["ftp://h", "http://", "h:80"])
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be http:// or https:// with a host"):
        Endpoint(url)


async def test_the_template_is_what_the_second_probe_finds_cached() -> None:
    async with scripted_server((streams.chat(["x"]),), (streams.chat(["x"], cached=13),)) as server:
        assert await probe_template_tokens(LoadTarget(server.url, "m"), "chat", 5) == 13
        assert len(set(server.requests)) == 2


async def test_a_cache_that_will_not_be_flushed_is_told() -> None:
    refused = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno"
    async with scripted_server(
        (refused,), (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",)
    ) as server:
        assert await flush_prefix_cache(LoadTarget(server.url))
        assert server.requests[0].startswith(b"POST /flush_cache ")
    async with scripted_server((refused,)) as server:
        assert not await flush_prefix_cache(LoadTarget(server.url), tries=5)


def plan(url: str, **fields: Any) -> ShardPlan:
    values: dict[str, Any] = {
        "target": LoadTarget(url, "m"),
        "api": "chat",
        "draw": PromptDraw("builtin:chat", 1, 0),
        "output_tokens": 9,
    }
    return ShardPlan(**{**values, "timeout_s": 5, **fields})


def test_a_closed_loop_sends_each_request_the_moment_its_slot_is_free() -> None:
    with served((CHAT,)) as server:
        result = run_shard(plan(server.url, requests=7, concurrency=2))
        assert server.connections == 2
    assert [request.number for request in result.columns.requests()] == list(range(7))
    assert all(
        request.ok and request.response.completion_tokens == 9
        for request in result.columns.requests()
    )
    ends = {request.end_ns for request in result.columns.requests()}
    begins = {result.start_ns, result.start_ns + 200_000}  # one slot after the other
    assert all(request.intended_ns in ends | begins for request in result.columns.requests())


def test_an_open_loop_keeps_its_times_however_slow_the_server_is() -> None:
    offsets = (0.0, 0.05, 0.1)
    with served((SILENCE,)) as server:
        result = run_shard(plan(server.url, requests=3, offsets_s=offsets, timeout_s=0.3))
    start = result.columns.requests()[0].intended_ns
    assert [request.intended_ns - start for request in result.columns.requests()] == [
        0,
        50_000_000,
        100_000_000,
    ]
    assert all(request.sent_ns >= request.intended_ns for request in result.columns.requests())
    assert [request.response.error_kind for request in result.columns.requests()] == ["timeout"] * 3


def test_failures_are_among_the_requests_and_the_others_go_on() -> None:
    with served((CHAT,), (CHAT[:100], CLOSE), (BUSY,), (CHAT,)) as server:
        result = run_shard(plan(server.url, requests=4, concurrency=1))
    assert [request.response.error_kind for request in result.columns.requests()] == [
        "",
        "truncated",
        "http_status",
        "",
    ]


def test_a_slot_gives_up_when_the_server_is_gone() -> None:
    result = run_shard(plan(f"http://127.0.0.1:{free_port()}", requests=50, concurrency=1))
    assert [request.response.error_kind for request in result.columns.requests()] == [
        "connect",
        "connect",
    ]
    assert [request.sent_ns for request in result.columns.requests()] == [0, 0]


def cancelled_soon(path: Path, server: ScriptedServer) -> Callable[[], None]:
    def wait_and_cancel() -> None:
        deadline = time.monotonic() + 5
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.005)
        path.touch()

    return wait_and_cancel


@pytest.mark.parametrize(
    "pattern", [{"concurrency": 2}, {"offsets_s": tuple(float(at) for at in range(50))}]
)
def test_a_cancelled_shard_ends_at_once_and_says_so(
    tmp_path: Path, pattern: dict[str, object]
) -> None:
    path = tmp_path / "cancel"
    with served((CHAT[:100], SILENCE)) as server:
        canceller = threading.Thread(target=cancelled_soon(path, server))
        canceller.start()
        began = time.monotonic()
        result: ShardResult = run_shard(
            plan(server.url, requests=50, timeout_s=60, cancel_path=str(path), **pattern)
        )
        canceller.join()
    assert result.cancelled
    assert time.monotonic() - began < 5
    assert {request.response.error_kind for request in result.columns.requests()} == {"cancelled"}
