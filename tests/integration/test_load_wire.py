"""Promises of the wire on real sockets: times are those of arrival whatever the loop does, TLS
included, and no server holds it up.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import cast

import pytest
import uvloop

from fleet_agent.load.client import timed_http_client
from fleet_agent.load.client.native.library import load_library
from fleet_agent.load.client.native_reader import new_socket_reader
from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.client.response_decoder import decode_response
from fleet_agent.load.client.socket_reader import arrival_ns
from fleet_agent.load.client.timed_http_client import Endpoint, Exchange, LoadConnection
from fleet_agent.load.workers.shard import run_shard
from fleet_agent.load.workers.shard_plan import ShardLimits, ShardPlan
from fleet_agent.load.workload.prompts import PromptDraw
from fleet_agent.load.workload.request_plan import PlannedRequest, RequestPlan
from fleet_controller.pki.certificate_builder import Subject, make_certificate
from fleet_transport.tls_identity import Role
from tests.fakes import streams
from tests.fakes.certificates import Maker
from tests.fakes.native import WAYS, reading
from tests.fakes.scripted_server import CLOSE, RESET, served

REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
CHAT = streams.chat([" a", " b", " c"], tokens=9)
PART = streams.chunk(streams.delta(content="token"))
MANY = 12
BUSY_S = 0.08  # so long the loop does something else
SOON_NS = 20_000_000


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with reading(request.param) as chosen:
        yield chosen


def hold_up(seconds: float) -> None:
    """Keep the loop from all other work, as another stream's would."""
    time.sleep(seconds)


@asynccontextmanager
async def talking(
    count: int = 1,
) -> AsyncIterator[list[tuple[socket.socket, asyncio.Task[Exchange]]]]:
    """So many connections over loopback, each with a request in flight whose answer has begun: the
    server's ends, and what will come.
    """
    wire, pairs, connections = new_socket_reader(), [], []
    async with asyncio.TaskGroup() as group:
        with socket.create_server(("127.0.0.1", 0)) as server:
            for _ in range(count):
                link = socket.create_connection(server.getsockname())
                link.setblocking(False)
                far, _ = server.accept()
                connections.append(LoadConnection(wire, link, None))
                pairs.append((far, group.create_task(connections[-1].exchange(REQUEST, 5))))
        await asyncio.sleep(
            0.05
        )  # the kernel begins to stamp a moment after the first socket asks it to
        for far, _ in pairs:
            far.send(streams.HEAD)
        await asyncio.sleep(0.01)
        yield pairs
    for connection in connections:
        connection.abort()
    wire.close()
    for far, _ in pairs:
        far.close()


async def test_the_time_of_a_read_is_that_of_its_arrival_and_not_that_of_the_look_at_it() -> None:
    async with talking() as [(far, exchange)]:
        sent_ns = perf_counter_ns()
        far.send(PART)
        hold_up(BUSY_S)
        await asyncio.sleep(0.01)
        far.send(streams.LAST_CHUNK)
        [_, (at_ns, data), _] = (await exchange).reads.pairs()
    assert data == PART
    assert sent_ns <= at_ns < sent_ns + SOON_NS


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wall_clock_that_is_set_moves_no_time(hours: int) -> None:
    found = load_library()
    arrived_ns = arrival_ns if found is None else found.call.bf_arrival_ns
    apart_ns, at_ns = 1_800_000_000 * 10**9, 5000 * 10**9
    for late_ns, expected_ns in (
        (700, at_ns - 700),
        (2000, at_ns),
        (-1, at_ns),
        (hours * 3600 * 10**9, at_ns),
    ):
        assert arrived_ns(apart_ns + at_ns - late_ns, apart_ns, at_ns - 1000, at_ns) == expected_ns


async def test_each_of_many_streams_has_its_own_times_while_the_loop_is_held_up() -> None:
    async with talking(MANY) as pairs:
        sent = []
        for far, _ in pairs:
            sent.append(perf_counter_ns())
            far.send(PART)
            hold_up(0.003)
        await asyncio.sleep(0.01)
        for far, _ in pairs:
            far.send(streams.LAST_CHUNK)
        for sent_ns, (_, exchange) in zip(sent, pairs, strict=True):
            [_, (at_ns, data), _] = (await exchange).reads.pairs()
            assert data == PART
            assert sent_ns <= at_ns < sent_ns + 3_000_000


async def test_a_stream_that_breaks_among_many_is_told_and_the_others_go_on() -> None:
    async with talking(MANY) as [(ended, one), (broken, two), *others]:
        ended.close()
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        broken.close()
        for far, _ in others:
            far.send(PART + streams.LAST_CHUNK)
        assert ((await one).closed, (await two).failure) == (True, "reset")
        assert [(await exchange).failure for _, exchange in others] == [""] * len(others)


def secured(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for that name, and that of a client that trusts its authority."""
    maker = Maker.new(folder)
    files = maker.files(
        "server",
        make_certificate(maker.authority, Subject(Role.AGENT, host, host), datetime.now(UTC)),
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl.create_default_context(cafile=files.authorities)


async def over_tls(server: ssl.SSLContext, trusted: ssl.SSLContext, parts: list[bytes]) -> Exchange:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
    endpoint = Endpoint(f"https://localhost:{listening.sockets[0].getsockname()[1]}", trusted)
    exchange = await endpoint.exchange(REQUEST, 5)
    endpoint.close()
    listening.close()
    return exchange


async def test_an_answer_over_tls_reads_like_any_other(tmp_path: Path) -> None:
    exchange = await over_tls(
        *secured(tmp_path, "localhost"), [CHAT[:100], CHAT[100:160], CHAT[160:]]
    )
    response = decode_response(
        exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail
    )
    assert (response.error_kind, response.completion_tokens, len(response.chunk_ns)) == ("", 9, 3)


async def test_a_server_under_another_name_is_not_met(tmp_path: Path) -> None:
    exchange = await over_tls(*secured(tmp_path, "somebody.else"), [CHAT])
    assert exchange.failure == "connect" and "certificate" in exchange.detail


async def test_a_stream_without_an_end_ends_at_its_limit_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed_http_client, "MAX_ANSWER_BYTES", 1 << 20)
    endless = [streams.HEAD, *[streams.chunk(streams.delta(content="x" * 60_000))] * 400]
    with served(tuple(endless)) as server:
        endpoint = Endpoint(server.url)
        exchange = await endpoint.exchange(REQUEST, 30)
        endpoint.close()
    response = decode_response(
        exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail
    )
    assert (response.error_kind, response.error_detail) == (
        "malformed",
        "the answer did not end within 1 MiB",
    )
    assert len(exchange.reads.data) < 2 << 20


async def test_an_answer_that_drips_ends_at_its_deadline() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for byte in CHAT:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
        finally:
            writer.close()

    listening = await asyncio.start_server(drip, "127.0.0.1", 0)
    endpoint = Endpoint(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    exchange = await endpoint.exchange(REQUEST, 0.3)
    endpoint.close()
    listening.close()
    assert exchange.failure == "timeout"


async def test_a_connection_on_which_a_request_is_still_being_sent_takes_no_other() -> None:
    refused = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno"
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}")
        async with asyncio.TaskGroup() as group:
            exchange = group.create_task(endpoint.exchange(REQUEST + b"x" * (64 << 20), 5))
            far, _ = await asyncio.to_thread(server.accept)
            await asyncio.to_thread(far.recv, 1)
            far.send(refused)
        far.close()
        assert decode_response(exchange.result().reads, closed=False).status == 413
        assert endpoint.idle == 0
        endpoint.close()


async def test_a_request_that_nobody_reads_ends_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}")
        exchange = await endpoint.exchange(REQUEST + b"x" * (64 << 20), 0.5)
        endpoint.close()
    assert exchange.failure == "timeout"


@pytest.mark.parametrize("size", [200, 200_000, 3_000_000])
def test_a_connection_that_breaks_right_behind_what_came_is_reset_on_the_loop_that_shards_use(
    size: int,
) -> None:
    """uvloop tells of it once."""
    cut = streams.HEAD + streams.chunk(streams.delta(content="x" * size))

    async def one() -> Exchange:
        with served((cut, RESET)) as server:
            endpoint = Endpoint(server.url)
            exchange = await endpoint.exchange(REQUEST, 5)
            endpoint.close()
        return exchange

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        exchange = runner.run(one())
    assert (exchange.failure, exchange.closed, cut.startswith(exchange.reads.data)) == (
        "reset",
        True,
        True,
    )


async def test_answers_are_not_kept_by_connections_that_are_gone() -> None:
    """Nothing is collected while a run goes on."""
    closing = streams.HEAD.replace(b"server: uvicorn", b"connection: close") + CHAT.removeprefix(
        streams.HEAD
    )
    gc.collect()
    gc.disable()
    try:
        with served((closing, CLOSE)) as server:
            endpoint = Endpoint(server.url)
            for _ in range(20):
                assert (await endpoint.exchange(REQUEST, 5)).failure == ""
            kept = sum(type(one) is Exchange and one.sent_ns != 0 for one in gc.get_objects())
            endpoint.close()
    finally:
        gc.enable()
    assert kept <= 2


def test_it_runs_on_the_loop_that_shards_use() -> None:
    async def two() -> list[str]:
        with served((CHAT,)) as server:
            endpoint = Endpoint(server.url)
            exchanges = [await endpoint.exchange(REQUEST, 5) for _ in range(2)]
            endpoint.close()
        return [
            decode_response(one.reads, closed=one.closed, failure=one.failure).error_kind
            for one in exchanges
        ]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(two()) == ["", ""]


@pytest.mark.parametrize("odd", [ValueError("no such prompt"), MemoryError()])
def test_a_run_that_ends_in_an_error_leaves_no_thread_behind(odd: Exception) -> None:
    class Broken:
        def planned_request(self, number: int, history: object = ()) -> PlannedRequest:
            if number > 0:
                raise odd
            return PlannedRequest("a prompt", "0" * 16, 9)

    with served((CHAT,)) as server:
        plan = ShardPlan(
            LoadTarget(server.url, "m"), "chat", PromptDraw("builtin:chat", 1, 0), 9, requests=3, concurrency=1, request_plan=cast(RequestPlan, Broken()),
            limits=ShardLimits(prepared=1),
        )  # fmt: skip
        with pytest.raises(BaseExceptionGroup):
            run_shard(plan)
        assert [thread.name for thread in threading.enumerate() if thread.name == "reader"] == []


def test_an_error_of_our_own_in_a_read_ends_the_run_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: LoadConnection) -> None:
        raise ValueError("nobody looks")

    monkeypatch.setattr(LoadConnection, "on_data", broken)
    with served((CHAT,)) as server:
        plan = ShardPlan(
            LoadTarget(server.url, "m"),
            "chat",
            PromptDraw("builtin:chat", 1, 0),
            9,
            requests=3,
            concurrency=1,
            timeout_s=60,
        )
        began = time.monotonic()
        with pytest.raises(ValueError, match="nobody looks"):
            run_shard(plan)
        assert time.monotonic() - began < 30
