"""Promises of the wire on real sockets: times are those of arrival whatever the loop does, TLS included, and no server holds it up."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns

import pytest
import uvloop

from fleet_agent.load import client
from fleet_agent.load.client import Endpoint, Exchange
from fleet_agent.load.decode import decode
from fleet_agent.load.wire import GATHER_FROM, Wire
from fleet_controller.trust.certify import Subject, make_certificate
from fleet_protos.identity import Role
from tests.fakes import streams
from tests.fakes.certificates import Maker
from tests.fakes.scripted_server import served

REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
CHAT = streams.chat([" a", " b", " c"], tokens=9)
BUSY_S = 0.08  # so long the loop does something else
SOON_NS = 20_000_000


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, bytes]] = []
        self.trouble: list[OSError] = []

    def came(self, at_ns: int, data: bytes) -> None:
        self.reads.append((at_ns, data))

    def broke(self, error: OSError) -> None:
        self.trouble.append(error)


@asynccontextmanager
async def wired(count: int = 1) -> AsyncIterator[tuple[Wire, list[tuple[socket.socket, Heard]]]]:
    """A wire with that many connections over loopback, and the other end of each."""
    wire, pairs = Wire(), []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(count):
            link = socket.create_connection(server.getsockname())
            link.setblocking(False)
            far, _ = server.accept()
            heard = Heard()
            wire.add(link, heard)
            pairs.append((far, heard))
    yield wire, pairs
    wire.close()
    for far, _ in pairs:
        far.close()


def hold_up(seconds: float) -> None:
    """Keep the loop from all other work, as another stream's would."""
    time.sleep(seconds)


async def until_heard(*heard: Heard, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while any(len(one.reads) < count for one in heard):  # noqa: ASYNC110 - the loop itself brings the news
            await asyncio.sleep(0.001)


async def first_stamp(wire: Wire, far: socket.socket, heard: Heard) -> None:
    """The kernel begins to stamp a moment after the first socket asks it to."""
    async with asyncio.timeout(5):
        while True:
            before = len(heard.reads)
            far.send(b"x")
            sent_ns = perf_counter_ns()
            hold_up(0.01)
            await until_heard(heard, count=before + 1)
            if heard.reads[-1][0] - sent_ns < 5_000_000:
                return


async def test_the_time_of_a_read_is_that_of_its_arrival_and_not_that_of_the_look_at_it() -> None:
    async with wired() as (wire, [(far, heard)]):
        await first_stamp(wire, far, heard)
        heard.reads.clear()
        sent_ns = perf_counter_ns()
        far.send(b"hello")
        hold_up(BUSY_S)
        await until_heard(heard)
        [(at_ns, data)] = heard.reads
        assert data == b"hello"
        assert sent_ns <= at_ns < sent_ns + SOON_NS


async def test_a_wall_clock_that_is_set_moves_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wired() as (wire, [(far, heard)]):
        await first_stamp(wire, far, heard)
        for hours in (-1, 1):
            monkeypatch.setattr("fleet_agent.load.wire.time_ns", lambda hours=hours: time.time_ns() + hours * 3600 * 10**9)
            heard.reads.clear()
            before_ns = perf_counter_ns()
            far.send(b"x")
            await until_heard(heard)
            assert before_ns <= heard.reads[0][0] <= perf_counter_ns()


async def test_news_that_gathers_is_all_taken_each_at_its_own_time() -> None:
    async with wired(GATHER_FROM + 4) as (wire, pairs):
        wire.busy = len(pairs)
        await first_stamp(wire, *pairs[0])
        pairs[0][1].reads.clear()
        sent = []
        for far, _ in pairs:
            sent.append(perf_counter_ns())
            far.send(b"token")
            hold_up(0.002)
        await until_heard(*(heard for _, heard in pairs))
        for at_ns, (_, heard) in zip(sent, pairs, strict=True):
            assert [data for _, data in heard.reads] == [b"token"]
            assert at_ns <= heard.reads[0][0] < at_ns + 2_000_000


async def test_what_the_peer_ends_and_what_breaks_is_told_and_a_removed_line_is_silent() -> None:
    async with wired(3) as (_, [(ended, one), (broken, two), (gone, three)]):
        ended.close()
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        broken.close()
        await until_heard(one)
        assert one.reads[0][1] == b""
        async with asyncio.timeout(5):
            while not two.trouble:  # noqa: ASYNC110 - the loop itself brings the news
                await asyncio.sleep(0.001)
        assert isinstance(two.trouble[0], ConnectionResetError)
        assert (gone.fileno() >= 0, three.reads) == (True, [])


def secured(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for that name, and that of a client that trusts its authority."""
    maker = Maker.new(folder)
    files = maker.files("server", make_certificate(maker.authority, Subject(Role.AGENT, host, host), datetime.now(UTC)))
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
    exchange = await over_tls(*secured(tmp_path, "localhost"), [CHAT[:100], CHAT[100:160], CHAT[160:]])
    response = decode(exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail)
    assert (response.error_kind, response.completion_tokens, len(response.chunk_ns)) == ("", 9, 3)


async def test_a_server_under_another_name_is_not_met(tmp_path: Path) -> None:
    exchange = await over_tls(*secured(tmp_path, "somebody.else"), [CHAT])
    assert exchange.failure == "connect" and "certificate" in exchange.detail


async def test_a_stream_without_an_end_ends_at_its_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    endless = [streams.HEAD, *[streams.chunk(streams.delta(content="x" * 60_000))] * 400]
    with served(tuple(endless)) as server:
        endpoint = Endpoint(server.url)
        exchange = await endpoint.exchange(REQUEST, 30)
        endpoint.close()
    response = decode(exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail)
    assert (response.error_kind, response.error_detail) == ("malformed", "no end after 1 MiB")
    assert sum(len(data) for _, data in exchange.reads) < 2 << 20


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


async def test_a_request_that_nobody_reads_ends_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}")
        exchange = await endpoint.exchange(REQUEST + b"x" * (64 << 20), 0.5)
        endpoint.close()
    assert exchange.failure == "timeout"


def test_it_runs_on_the_loop_that_shards_use() -> None:
    async def two() -> list[str]:
        with served((CHAT,)) as server:
            endpoint = Endpoint(server.url)
            exchanges = [await endpoint.exchange(REQUEST, 5) for _ in range(2)]
            endpoint.close()
        return [decode(one.reads, closed=one.closed, failure=one.failure).error_kind for one in exchanges]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(two()) == ["", ""]
