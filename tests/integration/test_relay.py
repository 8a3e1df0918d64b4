"""Promises of the relay before a measured server: every byte in order, for hosts of the cluster
alone, and no longer than it is wanted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.cluster.membership import ClusterSecrets, Membership, MembershipFiles
from fleet_agent.load.cluster.relay_launcher import RelayLauncher
from fleet_controller.pki.load_cluster_ca import LoadClusterAuthority
from fleet_protos.errors import LoadError

LIMIT_S = 20.0
PART = Membership("trial", 1, "lead", "127.0.0.1", "127.0.0.1:9")


def cluster(folder: Path) -> MembershipFiles:
    """The files of one host of a cluster of its own."""
    trust = LoadClusterAuthority(datetime.now(UTC))
    issued = trust.issue("lead", "127.0.0.1")
    files = MembershipFiles(folder)
    files.write(
        PART,
        ClusterSecrets(
            trust.token,
            trust.authority_pem.decode(),
            issued.certificate_pem.decode(),
            issued.key_pem.decode(),
        ),
    )
    return files


def client(files: MembershipFiles, shows: MembershipFiles | None) -> ssl.SSLContext:
    """Trusts the cluster of `files`, and shows the certificate of `shows`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.authority)
    if shows is not None:
        context.load_cert_chain(shows.certificate, shows.key)
    return context


@asynccontextmanager
async def served(answer: bytes = b"", closes: bool = False) -> AsyncIterator[int]:
    """The port of a server on loopback that answers a line with the digest of it, or with `answer`;
    `closes`: at once, without a word.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not closes:
            line = await reader.readline()
            writer.write(answer or hashlib.sha256(line).hexdigest().encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 26)
    yield server.sockets[0].getsockname()[1]
    server.close()


@asynccontextmanager
async def relayed(files: MembershipFiles, port: int) -> AsyncIterator[tuple[RelayLauncher, int]]:
    """Relays with one that runs, and its port."""
    relays = RelayLauncher("127.0.0.1", files)
    reached = await relays.make_reachable(LoadTarget(f"http://127.0.0.1:{port}"))
    assert reached.in_cluster and reached.url.startswith("https://127.0.0.1:")
    try:
        yield relays, int(reached.url.rpartition(":")[2])
    finally:
        await relays.end()


async def asked(port: int, tls: ssl.SSLContext, line: bytes) -> bytes:
    """All that comes back for a line."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            writer.write(line)
            return await reader.read()
        finally:
            writer.close()


async def test_what_is_sent_arrives_and_what_is_answered_comes_back_whole(tmp_path: Path) -> None:
    files = cluster(tmp_path / "c")
    line = bytes(range(11, 256)) * 40_000 + b"\n"
    async with served() as port, relayed(files, port) as (_, relay):
        assert (
            await asked(relay, client(files, files), line)
            == hashlib.sha256(line).hexdigest().encode()
        )
    answer = b"0123456789" * 2_000_000
    async with served(answer) as port, relayed(files, port) as (_, relay):
        assert await asked(relay, client(files, files), b"go\n") == answer


async def test_who_has_no_certificate_of_the_cluster_gets_no_answer(tmp_path: Path) -> None:
    files, other = cluster(tmp_path / "c"), cluster(tmp_path / "o")
    async with served(b"secret") as port, relayed(files, port) as (_, relay):
        for shows in (None, other):
            with suppress(ssl.SSLError, ConnectionError):
                assert await asked(relay, client(files, shows), b"go\n") == b""
        assert await asked(relay, client(files, files), b"go\n") == b"secret"


async def test_a_server_that_closes_or_is_gone_closes_the_connection(tmp_path: Path) -> None:
    files = cluster(tmp_path / "c")
    async with served(closes=True) as port, relayed(files, port) as (_, relay):
        assert await asked(relay, client(files, files), b"go\n") == b""
    async with relayed(files, port) as (_, relay):
        with suppress(ConnectionError):
            assert await asked(relay, client(files, files), b"go\n") == b""


async def test_the_relay_tells_how_late_it_woke_since_it_was_last_asked(tmp_path: Path) -> None:
    files = cluster(tmp_path / "c")
    async with served() as port, relayed(files, port) as (relays, _):
        await asyncio.sleep(0.2)
        first, second = await relays.lags_ns(), await relays.lags_ns()
        assert 5 <= len(first) <= 40 and len(second) < 5
        assert all(lag >= 0 for lag in first)


async def test_one_server_has_one_relay_and_another_server_another(tmp_path: Path) -> None:
    files = cluster(tmp_path / "c")
    async with served(b"one") as one, served(b"two") as two, relayed(files, one) as (relays, relay):
        assert (await relays.make_reachable(LoadTarget(f"http://127.0.0.1:{one}"))).url.endswith(
            f":{relay}"
        )
        other = await relays.make_reachable(LoadTarget(f"http://localhost:{two}/base"))
        assert other.url.endswith("/base")
        assert (
            await asked(int(other.url.split(":")[2].split("/")[0]), client(files, files), b"go\n")
            == b"two"
        )
        with pytest.raises(OSError):
            await asked(relay, client(files, files), b"go\n")


async def test_a_server_elsewhere_is_reached_as_it_is(tmp_path: Path) -> None:
    target = LoadTarget("https://server.example:8000")
    assert (
        await RelayLauncher("127.0.0.1", MembershipFiles(tmp_path)).make_reachable(target) == target
    )


async def test_a_relay_that_cannot_start_is_a_load_that_failed(tmp_path: Path) -> None:
    files = cluster(tmp_path / "c")
    files.key.unlink()
    with pytest.raises(LoadError, match="exit code"):
        await RelayLauncher("127.0.0.1", files).make_reachable(LoadTarget("http://127.0.0.1:9"))


async def test_a_relay_ends_with_who_started_it(tmp_path: Path) -> None:
    files = cluster(tmp_path / "c")
    paths = ["--certificate", files.certificate, "--key", files.key, "--authority", files.authority]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fleet_agent.load.cluster.relay", "--address", "127.0.0.1", "--port", "9", *map(str, paths),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    assert json.loads(await process.stdout.readline()) > 0
    process.stdin.close()
    async with asyncio.timeout(LIMIT_S):
        assert await process.wait() == 0
