"""The doors of a real agent and a real controller on a network: who is refused, what the log says,
what the client is told.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.pki.certificate_builder import CertificateAndKey
from fleet_protos.errors import HostUnreachable
from fleet_transport.certificate import parse_certificates
from fleet_transport.revocation_list import Revocation, revocations_json
from fleet_transport.sockets import parse_endpoint
from fleet_transport.tls_client import explain_connection_failure
from fleet_transport.tls_identity import CONTROLLER_NAME, Role, TlsFiles, agent_name
from tests.fakes.certificates import Maker

LIMIT_S = 30.0
HOST = "gpu01"


@dataclass
class Door:
    """A program that listens on a network, its log, and the certificate that is welcome there."""

    role: Role
    address: str
    log: Path
    maker: Maker
    revoked: Path
    server: TlsFiles
    welcome: TlsFiles

    @property
    def name(self) -> str:
        return agent_name(HOST) if self.role is Role.AGENT else CONTROLLER_NAME

    @property
    def client(self) -> Role:
        return Role.CONTROLLER if self.role is Role.AGENT else Role.USER

    async def ask(self, files: TlsFiles, name: str = "") -> str:
        """What a client of ours is told; empty when it was served."""
        if self.role is Role.AGENT:
            agent = AgentClient(self.address, files, name or self.name)
            try:
                await agent.describe()
            except HostUnreachable as error:
                return error.message
            finally:
                await agent.close()
            return ""
        async with ControllerClient(self.address, files) as remote:
            try:
                await remote.jobs()
            except HostUnreachable as error:
                return error.message
        return ""

    def logged(self, reason: str) -> str:
        """The newest line of the log with this reason, waited for; its peer is checked to be one."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            lines = [
                line
                for line in self.log.read_text().splitlines()
                if "refused 127.0.0.1:" in line and reason in line
            ]
            if lines:
                peer = lines[-1].partition("refused ")[2].partition(": ")[0]
                assert parse_endpoint(peer)[1] > 0
                return lines[-1]
            assert time.monotonic() < deadline_s, (
                f"{reason!r} is not in the log:\n{self.log.read_text()}"
            )
            time.sleep(0.02)


@contextmanager
def running(argv: list[str], log: Path) -> Iterator[str]:
    """The address that a program says it listens on."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *argv], stderr=file, start_new_session=True
        )
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while "listening on " not in (said := log.read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline_s, said
            time.sleep(0.02)
        yield said.partition("listening on ")[2].split()[0]
    finally:
        process.terminate()
        assert process.wait(timeout=LIMIT_S) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


@contextmanager
def agent_door(folder: Path) -> Iterator[Door]:
    maker, revoked = Maker.new(folder), folder / "revoked.json"
    server = maker.files("server", maker.issue(Role.AGENT, HOST), revoked=revoked)
    config = folder / "agent.toml"
    tls = {
        "authorities": server.authorities,
        "certificate": server.certificate,
        "key": server.key,
        "revoked": revoked,
    }
    text = "".join(f'{key} = "{path}"\n' for key, path in tls.items())
    config.write_text(f'host = "{HOST}"\nstate = "{folder}/state"\ngpus = 0\n[tls]\n{text}')
    with running(
        ["fleet_agent.main", "--config", str(config), "--listen", "127.0.0.1:0"], folder / "log"
    ) as address:
        welcome = maker.files(
            "welcome", maker.issue(Role.CONTROLLER, "controller"), certificates_of(server)
        )
        yield Door(Role.AGENT, address, folder / "log", maker, revoked, server, welcome)


@contextmanager
def controller_door(folder: Path) -> Iterator[Door]:
    trust = folder / "trust"
    maker = Maker.new(trust)
    issued = maker.issue(Role.CONTROLLER, "controller")
    server = TlsFiles(
        trust / "ca.crt", trust / "controller.crt", trust / "controller.key", trust / "revoked.json"
    )
    (trust / "ca.crt").write_bytes(maker.authority.certificate_pem)
    (trust / "ca.key").write_bytes(maker.authority.key_pem)
    (trust / "ca.key").chmod(0o600)
    server.certificate.write_bytes(issued.certificate_pem)
    server.key.write_bytes(issued.key_pem)
    argv = [
        "fleet_controller.app.main",
        "--state",
        str(folder / "controller"),
        "--listen",
        "127.0.0.1:0",
    ]
    with running(argv, folder / "log") as address:
        welcome = maker.files("welcome", maker.issue(Role.USER, "ann"))
        yield Door(
            Role.CONTROLLER, address, folder / "log", maker, trust / "revoked.json", server, welcome
        )


def certificates_of(files: TlsFiles) -> bytes:
    """As the controller pins an agent: nothing but its own certificate is trusted."""
    return files.certificate.read_bytes()


@pytest.fixture(scope="module", params=["agent", "controller"])
def door(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    with {"agent": agent_door, "controller": controller_door}[request.param](
        tmp_path_factory.mktemp(request.param)
    ) as one:
        yield one


def shown(door: Door, issued: CertificateAndKey, label: str) -> TlsFiles:
    """The client's files with another certificate in them."""
    return door.maker.files(label, issued, door.welcome.authorities.read_bytes())


async def refused(door: Door, files: TlsFiles, log: str, told: str) -> None:
    """Refused, with one clear line in the log, and the reason at the client."""
    assert told in await door.ask(files)
    door.logged(log)
    assert await door.ask(door.welcome) == ""


async def test_a_certificate_of_the_right_role_is_served(door: Door) -> None:
    assert await door.ask(door.welcome) == ""


async def test_an_expired_certificate_is_refused_with_its_day(door: Door) -> None:
    issued = door.maker.issue(door.client, "controller", days=-400)
    ended = time.strftime(
        "%Y-%m-%d", time.gmtime(parse_certificates(issued.certificate_pem)[0].not_after_unix_s)
    )
    await refused(
        door, shown(door, issued, "expired"), f"expired on {ended}", f"expired on {ended}"
    )


async def test_a_certificate_that_is_not_yet_valid_is_refused(door: Door) -> None:
    files = shown(door, door.maker.issue(door.client, "controller", days=10), "future")
    await refused(door, files, "is not valid before", "is not valid before")


async def test_a_certificate_of_another_authority_is_refused(door: Door, tmp_path: Path) -> None:
    files = shown(door, Maker.new(tmp_path).issue(door.client, "controller"), "foreign")
    await refused(door, files, "not issued by this fleet's authority", "rejects our certificate")


async def test_a_certificate_of_the_wrong_role_is_refused_by_name(door: Door) -> None:
    other = Role.USER if door.role is Role.AGENT else Role.AGENT
    files = shown(door, door.maker.issue(other, "eve"), "role")
    if other is Role.USER:
        await refused(
            door,
            files,
            "the certificate is that of user eve; only the controller may connect",
            "that of user eve",
        )
    else:  # an agent's certificate is for serving alone, so TLS itself refuses it
        await refused(door, files, "not meant for this purpose", "not meant for this purpose")


async def test_a_certificate_without_a_role_is_refused(door: Door) -> None:
    await refused(
        door, shown(door, door.maker.nameless(), "nameless"), "names no role", "names no role"
    )


async def test_a_revoked_certificate_is_refused_without_a_restart(door: Door) -> None:
    issued = door.maker.issue(door.client, "controller")
    files = shown(door, issued, "revoked")
    assert await door.ask(files) == ""
    entry = Revocation(
        parse_certificates(issued.certificate_pem)[0].fingerprint,
        door.client,
        "mallory",
        1_760_000_000,
        "laptop stolen",
    )
    door.revoked.write_text(revocations_json([entry]))
    await refused(
        door,
        files,
        "was revoked on 2025-10-09: laptop stolen",
        "was revoked on 2025-10-09: laptop stolen",
    )


def test_no_certificate_is_refused(door: Door) -> None:
    credentials = grpc.ssl_channel_credentials(door.welcome.authorities.read_bytes())
    with grpc.secure_channel(
        door.address, credentials, options=[("grpc.ssl_target_name_override", door.name)]
    ) as channel:
        assert is_refused(channel)
    door.logged("the peer presents no certificate")


def test_who_speaks_no_tls_is_refused(door: Door) -> None:
    with grpc.insecure_channel(door.address) as channel:
        assert is_refused(channel)
    door.logged("the peer does not speak TLS")


def is_refused(channel: grpc.Channel) -> bool:
    call = channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", timeout=LIMIT_S)
    return raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_older_tls_is_refused(door: Door) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(parse_endpoint(door.address), LIMIT_S) as connection,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(connection)
    door.logged("the peer only speaks a TLS version older than 1.3")


async def test_who_passes_for_the_server_is_refused_by_the_client(
    door: Door, tmp_path: Path
) -> None:
    if (
        door.role is Role.AGENT
        # even with a certificate of the fleet in this host's name: it is not the one that was issued to
        # it
    ):
        pinned = door.maker.issue(Role.AGENT, HOST).certificate_pem
        other = door.maker.files("other", door.maker.issue(Role.CONTROLLER, "controller"), pinned)
        why = f"the server shows an old or forged certificate of agent {HOST}"
    else:
        why = "the server's certificate is not issued by this fleet's authority"
        other = door.maker.files(
            "other",
            door.maker.issue(Role.USER, "ann"),
            Maker.new(tmp_path).authority.certificate_pem,
        )
    assert why in await door.ask(other)
    door.logged("the peer rejects this server's certificate")


async def test_an_agent_of_another_name_is_refused_by_the_client(tmp_path: Path) -> None:
    with agent_door(tmp_path) as door:
        files = door.maker.files(
            "any", door.maker.issue(Role.CONTROLLER, "controller")
        )  # trusts the whole authority
        assert "that of another party (expected gpu02.agent.benchfleet)" in await door.ask(
            files, agent_name("gpu02")
        )


async def test_the_certificate_of_another_host_is_named_as_that(tmp_path: Path) -> None:
    with agent_door(tmp_path) as door:
        pinned = door.maker.issue(Role.AGENT, "gpu02").certificate_pem
        files = door.maker.files("own", door.maker.issue(Role.CONTROLLER, "controller"), pinned)
        assert (await door.ask(files, agent_name("gpu02"))).endswith(
            f"the server shows a certificate that names agent {HOST}; only the one that was issued"
            " to agent gpu02 is accepted here"
        )


async def test_nothing_that_listens_and_nothing_that_answers_are_told_apart(tmp_path: Path) -> None:
    maker = Maker.new(tmp_path)
    files = maker.files("any", maker.issue(Role.CONTROLLER, "controller"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert (
            await explain_connection_failure(address, files, "any", 0.2)
            == "a program listens there but does not answer"
        )
    agent = AgentClient(address, files, "any")
    with pytest.raises(HostUnreachable, match="nothing listens there"):
        await agent.describe()
    await agent.close()
