"""Promises of the way to a host: host keys, keys of users, jump hosts, tunnels, and what is told
when there is none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from fleet_controller.cli.fleet_file_option import read_fleet
from fleet_controller.core.inventory import FleetHost, Ssh
from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.keyring import Keyring
from fleet_controller.ssh.known_hosts import HostKeyRefused
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_controller.ssh.tunnel import Tunnels
from fleet_protos.errors import ConfigError, HostUnreachable
from fleet_transport.tls_identity import agent_name
from tests.lab.deploying import OperatorMachine
from tests.lab.fleet import PORT
from tests.lab.hosts import LabHost, wait_until
from tests.lab.lab import Lab


@pytest.fixture(scope="module")
def host(shared_lab: Lab) -> LabHost:
    """A host to log in to; tests leave it as it was."""
    return shared_lab.hosts(1)[0]


def settings(host: LabHost, **other: object) -> Ssh:
    """How to log in there as bench, with nothing of this machine's own."""
    ssh = host.ssh("bench")
    usual = {"identities": (ssh.identity,), "known_hosts": (ssh.known_hosts,), "use_agent": False}
    return Ssh(address=ssh.address, user="bench", **{**usual, **other})  # type: ignore[arg-type]


def refusal(ssh: Ssh) -> HostKeyRefused:
    with pytest.raises(HostKeyRefused) as refused:
        SshConnection.open(ssh, Keyring())
    return refused.value


def test_arguments_reach_a_program_as_they_are(host: LabHost) -> None:
    words = ["a b", "$HOME", "';id;'", "*", "", "é\n"]
    with SshConnection.open(settings(host), Keyring()) as connection:
        ran = connection.run(["python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *words])
    assert ran.out.decode() == ascii(words) + "\n"


def test_an_unknown_host_key_is_refused_with_its_fingerprint_and_the_command_that_adds_it(
    host: LabHost, tmp_path: Path
) -> None:
    error = refusal(settings(host, known_hosts=(str(tmp_path / "known_hosts"),)))
    shown = host.run(["ssh-keygen", "-lf", "/etc/ssh/lab_host_key.pub"]).stdout.split()[1]
    assert shown in error.message
    assert f"ssh-keyscan -t ed25519 {host.address} >> {tmp_path}/known_hosts" in error.hint
    assert not (tmp_path / "known_hosts").exists()


def test_a_changed_host_key_is_refused_with_both_fingerprints_and_the_command_that_forgets_the_old(
    host: LabHost, tmp_path: Path
) -> None:
    other = (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .decode()
    )
    file = tmp_path / "known_hosts"
    file.write_text(f"{host.address} {other}\n")
    error = refusal(settings(host, known_hosts=(str(file),)))
    assert error.message.count("SHA256:") == 2
    assert f"ssh-keygen -R {host.address} -f {file}" in error.hint
    assert file.read_text() == f"{host.address} {other}\n"


def test_a_key_with_a_passphrase_is_not_read_without_a_terminal_or_an_agent(
    host: LabHost, tmp_path: Path
) -> None:
    key = Ed25519PrivateKey.generate()
    file = tmp_path / "locked"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(ConfigError, match="passphrase") as error:
        SshConnection.open(settings(host, identities=(str(file),)), Keyring())
    assert f"ssh-add {file}" in error.value.hint


def test_a_key_with_a_passphrase_is_used_as_ssh_agent_holds_it(
    host: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, socket = tmp_path / "locked", tmp_path / "agent.sock"
    key = load_ssh_private_key(Path(host.ssh().identity).read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, BestAvailableEncryption(b"secret"))
    )
    locked.with_name("locked.pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL
    ) as agent:
        try:
            wait_until(socket.exists, 10.0, "ssh-agent listens")
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            subprocess.run(["ssh-add", "-q", host.ssh().identity], check=True)
            keyring = Keyring()
            with SshConnection.open(
                settings(host, identities=(str(locked),), use_agent=True), keyring
            ) as connection:
                assert connection.run(["id", "-un"]).out == b"bench\n"
                # the host cannot use the agent's keys: the agent is never forwarded
                assert b"SSH_AUTH_SOCK" not in connection.run(["env"]).out
            keyring.close()
        finally:
            agent.terminate()


def test_a_key_that_is_not_let_in_is_named_with_the_command_that_brings_it(
    host: LabHost, tmp_path: Path
) -> None:
    file = tmp_path / "other"
    file.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
        )
    )
    with pytest.raises(ConfigError, match=str(file)) as error:
        SshConnection.open(settings(host, identities=(str(file),)), Keyring())
    assert "ssh-copy-id" in error.value.hint


def test_a_host_that_is_off_is_told_as_out_of_reach(host: LabHost) -> None:
    host.cut()
    try:
        with pytest.raises(HostUnreachable, match="by SSH"):
            SshConnection.open(settings(host, connect_timeout_s=0.5), Keyring())
    finally:
        host.heal()


def test_a_host_behind_another_is_deployed_and_reached_through_a_tunnel_that_heals(
    shared_lab: Lab, host: LabHost, tmp_path: Path
) -> None:
    [inner] = shared_lab.hosts(1)
    desk = OperatorMachine(tmp_path)
    known = desk.folder / "known_hosts"
    known.write_text(
        Path(host.ssh().known_hosts).read_text() + Path(inner.ssh().known_hosts).read_text()
    )
    desk.knows(inner, more=f"proxy_jump: bench@{host.address}, known_hosts: [{known}]")
    told = desk.results("deploy")[inner.name]
    assert (told["state"], told["message"]) == ("changed", "")
    assert not inner.listens(PORT)  # on no address that the network reaches
    [known_host] = read_fleet(desk.folder / "fleet.yaml").hosts
    asyncio.run(over_a_tunnel(known_host, Authority.open(desk.folder / "state/trust"), host))
    assert desk.results("undeploy")[inner.name]["state"] == "removed"


async def over_a_tunnel(known: FleetHost, authority: Authority, way: LabHost) -> None:
    """Ask the agent, end the tunnel's SSH connections on the way, ask again."""
    async with Tunnels() as tunnels:
        client = AgentClient(
            await tunnels.open_tunnel(known),
            authority.agent_files(known.name),
            agent_name(known.name),
        )
        try:
            assert await described(client) == known.name
            end_sessions(way)
            await tunnels.open_tunnel(known)
            assert await described(client) == known.name
        finally:
            await client.close()


async def described(client: AgentClient) -> str:
    """The name that the agent gives, asked until it does: a call that is under way when the line
    breaks may fail.
    """
    for _ in range(100):
        with suppress(HostUnreachable):
            return (await client.describe()).host
    return ""


def end_sessions(host: LabHost) -> None:
    """Kill what sshd started for the logins of bench."""
    for process in host.processes():
        if process.argv and process.argv[0].startswith("sshd: bench"):
            os.kill(process.outer_pid, signal.SIGKILL)
