"""The TLS door by itself, before a gRPC server in this process: what changes while it stands open,
what it carries, what it endures.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fleet_protos.errors import ConfigError, Conflict
from fleet_transport.caller import describe_peer
from fleet_transport.certificate import Certificate, parse_certificates
from fleet_transport.request_limits import RequestLimit
from fleet_transport.revocation_list import Revocation, revocations_json
from fleet_transport.sockets import bind_server, parse_endpoint
from fleet_transport.tls_client import (
    PROBE_S,
    client_context,
    explain_connection_failure,
    open_channel,
)
from fleet_transport.tls_errors import describe_rejected_client
from fleet_transport.tls_gateway import LogThrottle, TlsGateway
from fleet_transport.tls_identity import Role, TlsFiles, agent_name
from fleet_transport.tls_reload import server_context
from tests.fakes.certificates import Maker

LIMIT_S = 30.0
HOST = "gpu01"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGE_BYTES = 24 << 20
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass
class House:
    """A server that echoes, and its door."""

    maker: Maker
    server: TlsFiles
    revoked: Path
    door: TlsGateway
    taken: list[Certificate]

    def client(self, label: str = "client", role: Role = Role.CONTROLLER) -> TlsFiles:
        return self.maker.files(label, self.maker.issue(role, "controller"))

    def line(self, files: TlsFiles) -> aio.Channel:
        return open_channel(self.door.address, files, agent_name(HOST), UNLIMITED)


class Echo(grpc.GenericRpcHandler):
    """`/echo/once` gives back what it got; `/echo/ever` says something every 50 ms."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == "/echo/once":
            return grpc.unary_unary_rpc_method_handler(self._once, bytes, bytes)
        return grpc.unary_stream_rpc_method_handler(self._ever)

    async def _once(self, request: bytes, context: object) -> bytes:
        return request

    async def _ever(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        while True:
            yield b"tick"
            await asyncio.sleep(0.05)


async def once(line: aio.Channel, content: bytes = b"x") -> bytes:
    answer: bytes = await line.unary_unary("/echo/once")(content, timeout=LIMIT_S)
    return answer


@asynccontextmanager
async def open_house(
    folder: Path, interceptors: Sequence[RequestLimit] = ()
) -> AsyncIterator[House]:
    maker, revoked = Maker.new(folder / "pem"), folder / "revoked.json"
    files = maker.files("server", maker.issue(Role.AGENT, HOST), revoked=revoked)
    server = aio.server(options=UNLIMITED, interceptors=interceptors)
    server.add_generic_rpc_handlers((Echo(),))
    taken: list[Certificate] = []
    door = TlsGateway(
        "127.0.0.1:0",
        bind_server(server, f"unix:{folder}/in.sock"),
        files,
        frozenset({Role.CONTROLLER}),
        taken.append,
    )
    await server.start()
    try:
        async with door.serving():
            yield House(maker, files, revoked, door, taken)
    finally:
        await server.stop(None)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as one:
        yield one


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.02)


async def test_a_new_certificate_is_taken_without_a_restart(house: House) -> None:
    old = house.taken[0]
    pinned_to_new = house.maker.issue(Role.AGENT, HOST)
    house.maker.files("server", pinned_to_new)
    files = house.maker.files(
        "client", house.maker.issue(Role.CONTROLLER, "controller"), pinned_to_new.certificate_pem
    )
    async with house.line(files) as line:
        assert await once(line) == b"x"
    assert (house.taken[0], house.taken[-1]) == (
        old,
        parse_certificates(pinned_to_new.certificate_pem)[0],
    )


async def test_a_pair_that_does_not_fit_leaves_the_one_before_in_use(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    key = house.server.key.read_bytes()
    for damaged in (b"", b"garbage", house.maker.issue(Role.AGENT, HOST).key_pem):
        house.server.key.write_bytes(damaged)
        async with house.line(house.client()) as line:
            assert await once(line) == b"x"
        assert str(house.server.key) in caplog.messages[-1]
        assert "the previous certificate stays in use" in caplog.messages[-1]
    house.server.key.write_bytes(key)
    async with house.line(house.client()) as line:
        assert await once(line) == b"x"
    assert house.taken[-1] == house.taken[0]


async def test_revoking_ends_the_connections_that_a_certificate_has(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    files, other = house.client("thief"), house.client("honest")
    async with house.line(files) as stolen, house.line(other) as kept:
        stream, honest = (line.unary_stream("/echo/ever")(b"") for line in (stolen, kept))
        assert [await stream.read(), await honest.read()] == [b"tick", b"tick"]
        known = parse_certificates(files.certificate.read_bytes())[0]
        house.revoked.write_text(
            revocations_json(
                [Revocation(known.fingerprint, "controller", "controller", 1_760_000_000, "stolen")]
            )
        )
        with pytest.raises(aio.AioRpcError) as raised:
            async with asyncio.timeout(LIMIT_S):
                while await stream.read():
                    pass
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await honest.read() == b"tick"
    assert any("was revoked on 2025-10-09: stolen" in message for message in caplog.messages)


async def test_the_gate_behind_the_door_tells_who_sent_what_it_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(tmp_path, interceptors=(RequestLimit(10),)) as house:
        files = house.maker.files("client", house.maker.issue(Role.CONTROLLER, "controller"))
        async with house.line(files) as line:
            with pytest.raises(aio.AioRpcError):
                await line.unary_unary("/echo/once")(b"x" * 11, timeout=LIMIT_S)
        async with aio.insecure_channel(f"unix:{tmp_path}/in.sock") as inside:
            with pytest.raises(aio.AioRpcError):
                await inside.unary_unary("/echo/once")(b"x" * 11, timeout=LIMIT_S)
    through_the_door, on_this_machine = (
        message for message in caplog.messages if "a message of 11 bytes is larger" in message
    )
    assert re.match(
        r"refused /echo/once from 127\.0\.0\.1:\d+ \(the controller\): ", through_the_door
    )
    assert "/echo/once from unix:" in on_this_machine


@pytest.mark.parametrize(
    "shown",
    [
        "unix:",
        "ipv4:127.0.0.1:1",
        "unix-abstract:other/10.0.0.1:1 (the controller)",
        "unix:door-1-1/x",
    ],
)
def test_a_peer_that_came_through_no_door_is_told_as_it_is(shown: str) -> None:
    assert describe_peer(shown) == shown


async def test_a_list_that_is_damaged_or_gone_revokes_what_it_did(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    files = house.client("thief")
    known = parse_certificates(files.certificate.read_bytes())[0]
    good = revocations_json(
        [Revocation(known.fingerprint, "controller", "controller", 1_760_000_000)]
    )
    for later in ("", "{", '{"version": 2}', None):
        house.revoked.write_text(good)
        assert house.door.refusal_reason(known)
        if later is None:
            house.revoked.unlink()
        else:
            house.revoked.write_text(later)
        assert "was revoked" in house.door.refusal_reason(known)
        assert str(house.revoked) in caplog.messages[-1]


async def test_large_messages_pass_both_ways_and_a_slow_reader_is_waited_for(house: House) -> None:
    content = random.Random(1).randbytes(LARGE_BYTES)
    async with house.line(house.client()) as line:
        assert await once(line, content) == content
        assert (
            await asyncio.gather(*(once(line, content[: 1 << 20]) for _ in range(8)))
            == [content[: 1 << 20]] * 8
        )


async def at_a_standstill(counts: dict[str, int]) -> dict[str, int]:
    """The counts once they have not grown for 0.2 s, and are not as they were at first."""
    at_first = before = dict(counts)
    async with asyncio.timeout(LIMIT_S):
        while True:
            await asyncio.sleep(0.2)
            if counts == before != at_first:
                return before
            before = dict(counts)


async def test_a_reader_that_does_not_read_holds_the_sender_back(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    sent, reading = {"inside": 0, "outside": 0}, asyncio.Event()

    async def send_for_ever(side: str, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(64 << 10))
                await writer.drain()
                sent[side] += 64 << 10

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send_for_ever("inside", writer))
            await reading.wait()
            while await reader.read(1 << 20):
                pass
            sending.cancel()
        writer.close()

    files = maker.files("server", maker.issue(Role.AGENT, HOST))
    door = TlsGateway("127.0.0.1:0", f"{tmp_path}/in.sock", files, frozenset({Role.CONTROLLER}))
    client = client_context(maker.files("client", maker.issue(Role.CONTROLLER, "controller")))
    async with (
        await asyncio.start_unix_server(inside, f"{tmp_path}/in.sock"),
        door.serving() as address,
    ):
        reader, writer = await asyncio.open_connection(
            *parse_endpoint(address), ssl=client, server_hostname=agent_name(HOST)
        )
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send_for_ever("outside", writer))
            before = await at_a_standstill(sent)
            assert 0 < sent["inside"] < 32 << 20  # what the kernel's buffers and ours take
            assert 0 < sent["outside"] < 32 << 20
            reading.set()
            got = 0
            while got < before["inside"] or sent["outside"] <= before["outside"]:
                got += len(await reader.read(1 << 20))
            sending.cancel()
        writer.transport.abort()


async def test_bytes_of_any_kind_are_refused_and_the_door_stays_open(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(4)
    strangers = [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        PREFACE,
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\0\5\1\0\0\1\0",
    ]
    bodies = [rng.randbytes(rng.randrange(1, 3000)) for _ in range(100)]
    strangers += bodies + [b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body for body in bodies]
    for content in strangers:
        _, writer = await asyncio.open_connection(*parse_endpoint(house.door.address))
        writer.write(content)
        writer.write_eof()
        writer.close()
    await until(lambda: not house.door.connections)
    async with house.line(house.client()) as line:
        assert await once(line) == b"x"
    assert not [message for message in caplog.messages if "refused 127.0.0.1:" not in message]


async def test_who_hangs_up_at_any_moment_leaves_nothing_open(house: House) -> None:
    files = house.client()
    for number in range(20):
        context = client_context(files)
        reader, writer = await asyncio.open_connection(
            *parse_endpoint(house.door.address), ssl=context, server_hostname=agent_name(HOST)
        )
        if number % 2:
            writer.write(PREFACE)
            await reader.read(1)
        writer.transport.abort()
    await until(lambda: not house.door.connections)


async def test_a_session_is_never_resumed_past_the_look_at_its_certificate(house: House) -> None:
    context = client_context(house.client())
    _, writer = await asyncio.open_connection(
        *parse_endpoint(house.door.address), ssl=context, server_hostname=agent_name(HOST)
    )
    session = writer.get_extra_info("ssl_object").session
    writer.transport.abort()
    assert session is None or not session.has_ticket


async def test_a_port_in_use_and_files_of_no_use_are_told(tmp_path: Path, house: House) -> None:
    files = house.server
    with pytest.raises(Conflict, match="Address already in use"):
        TlsGateway(house.door.address, "unix:/none", files, frozenset({Role.CONTROLLER}))
    for address in ("127.0.0.1", "0.0.0.0:http", ":7433", "::1:7433", "127.0.0.1:70000"):
        with pytest.raises(ConfigError, match="is not ADDRESS:PORT"):
            TlsGateway(address, "unix:/none", files, frozenset({Role.CONTROLLER}))
    for broken in ("authorities", "certificate", "key"):
        path = tmp_path / broken
        path.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
        changed = {name: getattr(files, name) for name in ("authorities", "certificate", "key")} | {
            broken: path
        }
        with pytest.raises(ConfigError, match=str(path)):
            TlsGateway(
                "127.0.0.1:0", "unix:/none", TlsFiles(**changed), frozenset({Role.CONTROLLER})
            )


async def test_it_listens_on_ipv6_too(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    files = maker.files("server", maker.issue(Role.AGENT, HOST))
    door = TlsGateway("[::1]:0", "unix:/none", files, frozenset({Role.CONTROLLER}))
    async with door.serving() as address:
        assert address.startswith("[::1]:")
        _, writer = await asyncio.open_connection(
            *parse_endpoint(address), ssl=client_context(files), server_hostname=agent_name(HOST)
        )
        writer.transport.abort()


@pytest.mark.parametrize(("addresses", "says"), [(1, b"\x16\x03\x01\x02\x00"), (12, b"")])
async def test_strangers_keep_nobody_out_not_even_from_their_own_address(
    house: House, caplog: pytest.LogCaptureFixture, addresses: int, says: bytes
) -> None:
    def connect() -> None:
        for number in range(600):
            stranger = stack.enter_context(socket.socket())
            stranger.settimeout(LIMIT_S)
            stranger.bind((f"127.0.0.{1 + number % addresses}", 0))
            stranger.connect(parse_endpoint(house.door.address))
            stranger.sendall(says)

    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(connect)
        async with house.line(house.client()) as line:
            assert await once(line) == b"x"
        assert len(house.door.connections) <= 513
    assert any("too many newer connections" in message for message in caplog.messages)
    await until(lambda: not house.door.connections)


async def test_a_client_that_is_dropped_for_newer_ones_says_so(house: House) -> None:
    files = house.client()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(parse_endpoint(house.door.address)))
        for _ in range(64):
            stack.enter_context(socket.create_connection(parse_endpoint(house.door.address)))
        await until(lambda: len(house.door.connections) == 64)

        def shake_hands() -> None:
            client_context(files).wrap_socket(first, server_hostname=agent_name(HOST)).close()

        with pytest.raises(ssl.SSLError) as dropped:
            await asyncio.to_thread(shake_hands)
        first.close()
    assert "the server has no room" in describe_rejected_client(dropped.value)


def test_an_authority_that_has_ended_is_trusted_no_more(tmp_path: Path) -> None:
    old, new = Maker.new(tmp_path / "old"), Maker.new(tmp_path / "new")
    both = old.authority.certificate_pem + new.authority.certificate_pem
    files = new.files("server", new.issue(Role.AGENT, HOST), both)
    ends_s = min(known.not_after_unix_s for known in parse_certificates(both))
    assert len(server_context(files, ends_s).get_ca_certs()) == 2
    with pytest.raises(ConfigError, match="all authorities have expired"):
        server_context(files, ends_s + 60)


def test_a_certificate_ends_no_later_than_its_authority(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    late = parse_certificates(maker.issue(Role.USER, "ann", days=3500).certificate_pem)[0]
    assert (
        late.not_after_unix_s
        == parse_certificates(maker.authority.certificate_pem)[0].not_after_unix_s
    )


async def test_a_client_is_told_which_of_its_files_is_of_no_use(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    for broken in ("authorities", "certificate", "key"):
        files = maker.files("client", maker.issue(Role.CONTROLLER, "controller"))
        path = getattr(files, broken)
        for content in (
            b"",
            b"garbage",
            b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
            None,
        ):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(ConfigError, match=str(path)):
                open_channel("127.0.0.1:1", files, "x")


async def test_the_end_of_a_tunnel_is_probed_like_an_address(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    files = maker.files("any", maker.issue(Role.CONTROLLER, "controller"))
    assert (
        await explain_connection_failure(f"unix:{tmp_path}/none.sock", files, "x")
        == "nothing listens there"
    )


def test_a_peer_that_tries_for_ever_is_told_of_once_a_minute_with_the_count() -> None:
    told = LogThrottle()
    answers = [
        told.suppressed_before("10.0.0.5 expired", now_s)
        for now_s in (0.0, 1.0, 59.0, 60.0, 61.0, 200.0)
    ]
    assert answers == [0, None, None, 2, None, 1]
    assert told.suppressed_before("10.0.0.6 expired", 200.0) == 0


def test_what_was_complained_of_stays_bounded() -> None:
    told = LogThrottle()
    for number in range(20_000):
        told.suppressed_before(f"{number}", 0.0)
    assert told.count <= 4096


def test_the_context_takes_no_tls_before_13(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    assert (
        client_context(maker.files("any", maker.issue(Role.USER, "ann"))).minimum_version
        is ssl.TLSVersion.TLSv1_3
    )


async def test_where_nothing_stands_in_the_way_nothing_is_told_and_at_once(house: House) -> None:
    async with asyncio.timeout(PROBE_S - 0.5):
        assert (
            await explain_connection_failure(house.door.address, house.client(), agent_name(HOST))
            == ""
        )
