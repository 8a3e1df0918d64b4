"""A fleet over mutual TLS on this machine: real agent, controller and `fleetctl`; who listens
where, revoked and renewed at work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet_controller.pki.authority import Authority
from fleet_transport.certificate import parse_certificates
from fleet_transport.sockets import parse_endpoint
from tests.contract.test_endpoints import running
from tests.fakes.free_port import free_port

LIMIT_S = 30.0
HOST = "gpu01"
FLEET = """\
apiVersion: benchfleet/v1
kind: Fleet
hosts: [{{name: {host}, address: 127.0.0.1, agent_port: {port}}}]
"""


@dataclass
class TrustedFleet:
    """One host and a controller, both at work."""

    folder: Path
    agent: str
    agent_metrics: int
    controller: str
    metrics: int
    pids: tuple[int, ...] = ()

    @property
    def authority(self) -> Authority:
        return Authority.open(self.folder / "state" / "trust")

    def ctl(self, *words: str, trust: str = "") -> subprocess.CompletedProcess[str]:
        """`fleetctl`; with `trust` as a user of another machine, who has that folder and nothing
        else.
        """
        state = self.folder / ("elsewhere" if trust else "state")
        env = {
            **os.environ,
            "BENCHFLEET_STATE": str(state),
            **({"BENCHFLEET_TRUST": trust} if trust else {}),
        }
        argv = [sys.executable, "-m", "fleet_controller.cli.main", *words]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=60, env=env, cwd=self.folder
        )

    def host(self, trust: str = "") -> dict[str, Any]:
        done = self.ctl("hosts", "ls", "--json", "--controller", self.controller, trust=trust)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["hosts"][0]
        return found

    def host_when(self, key: str, value: str) -> dict[str, Any]:
        """The host once this key holds this text."""
        deadline_s = time.monotonic() + LIMIT_S
        while value not in (host := self.host())[key]:
            assert time.monotonic() < deadline_s, host
            time.sleep(0.2)
        return host


def install(authority: Authority, folder: Path, addresses: tuple[str, ...] = ()) -> None:
    """What deploy does on a host, as far as trust goes."""
    issued = authority.issue_agent(HOST, addresses)
    folder.mkdir(exist_ok=True)
    for name, content in {
        "agent.key": issued.key_pem, "agent.crt": issued.certificate_pem, "ca.crt": authority.authorities_pem(),
        "revoked.json": authority.revoked_text().encode(),
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)


@contextmanager
def fleet(folder: Path, listen: str) -> Iterator[TrustedFleet]:
    made = TrustedFleet(folder, "", free_port(), "", free_port())
    assert made.ctl("init", str(folder), "--fleet").returncode == 0
    etc = folder / "etc"
    install(made.authority, etc)
    tls = "".join(f'{key} = "{etc}/{name}"\n' for key, name in TLS.items())
    (etc / "agent.toml").write_text(
        f'host = "{HOST}"\nstate = "{folder}/agent"\nsimulated_gpus = 8\ngpus = 0\n[tls]\n{tls}'
    )
    agent = [
        "fleet_agent.main",
        "--config",
        f"{etc}/agent.toml",
        "--listen",
        f"{listen}:0",
        "--metrics-port",
        str(made.agent_metrics),
    ]
    with running(agent, folder / "agent.log") as made.agent:
        (folder / "fleet.yaml").write_text(
            FLEET.format(host=HOST, port=parse_endpoint(made.agent)[1])
        )
        state = folder / "state" / "controller"
        controller = [
            "fleet_controller.app.main",
            "--state",
            str(state),
            "--fleet",
            str(folder / "fleet.yaml"),
            "--listen",
            f"{listen}:0",
        ]
        with running(
            [*controller, "--metrics-port", str(made.metrics)], folder / "controller.log"
        ) as made.controller:
            made.controller = f"127.0.0.1:{parse_endpoint(made.controller)[1]}"
            yield made


TLS = {
    "authorities": "ca.crt",
    "certificate": "agent.crt",
    "key": "agent.key",
    "revoked": "revoked.json",
}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrustedFleet]:
    with fleet(tmp_path_factory.mktemp("net"), "0.0.0.0") as made:
        made.host_when("state", "connected")
        yield made


def listeners() -> set[tuple[str, int]]:
    """(address, port) of every TCP socket on which a child of this process listens, grandchildren
    too.
    """
    found = set()
    for child in psutil.Process().children(recursive=True):
        found |= {
            (link.laddr.ip, link.laddr.port)
            for link in child.net_connections("inet")
            if link.status == psutil.CONN_LISTEN
        }
    return found


def test_nothing_listens_on_a_network_without_tls(net: TrustedFleet) -> None:
    ports = {parse_endpoint(net.agent)[1], parse_endpoint(net.controller)[1]}
    found = listeners()
    assert {port for address, port in found if not address.startswith("127.")} == ports
    assert {("127.0.0.1", net.metrics), ("127.0.0.1", net.agent_metrics)} <= found
    assert all(address.startswith("127.") or port in ports for address, port in found)
    for port in ports:
        with pytest.raises(OSError):  # plain HTTP: hung up on
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)


def test_a_user_of_another_machine_is_served_by_certificate_until_it_is_revoked(
    net: TrustedFleet,
) -> None:
    assert net.ctl("trust", "issue", "ann", "-o", "ann").returncode == 0
    host = net.host(trust=str(net.folder / "ann"))
    own = parse_certificates((net.folder / "etc" / "agent.crt").read_bytes())[0]
    assert (host["host"], host["state"], host["certificate_expires_unix_s"]) == (
        HOST,
        "connected",
        own.not_after_unix_s,
    )
    assert net.ctl("trust", "revoke", "ann", "--reason", "left us").returncode == 0
    done = net.ctl("ls", "--controller", net.controller, trust=str(net.folder / "ann"))
    assert (
        done.returncode,
        "the certificate of user ann was revoked" in done.stderr,
        "left us" in done.stderr,
    ) == (3, True, True)
    assert "refused 127.0.0.1:" in (net.folder / "controller.log").read_text()
    assert net.host()["host"] == HOST


def test_without_a_certificate_a_user_is_told_how_to_get_one(net: TrustedFleet) -> None:
    done = net.ctl("ls", "--controller", "lab.example:7434", trust="/nonexistent")
    assert (
        done.returncode,
        "/nonexistent" in done.stderr,
        "fleetctl trust issue" in done.stderr,
    ) == (2, True, True)


def test_a_controller_takes_its_new_certificate_and_goes_on(net: TrustedFleet) -> None:
    assert net.ctl("trust", "rotate").returncode == 0
    assert net.host_when("state", "connected")["host"] == HOST
    time_s = time.monotonic() + LIMIT_S
    while "loaded the new certificate" not in (net.folder / "controller.log").read_text():
        assert time.monotonic() < time_s
        time.sleep(0.05)


def test_prometheus_shows_when_certificates_end(net: TrustedFleet) -> None:
    text = (
        urllib.request.urlopen(f"http://127.0.0.1:{net.metrics}/metrics", timeout=10)
        .read()
        .decode()
    )
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("fleet_certificate_expires_timestamp_seconds{")
    ]
    series = {line.split("{")[1].split("}")[0] for line in lines}
    assert {
        f'host="{HOST}",role="agent"',
        'host="",role="controller"',
        'host="",role="user"',
        'host="",role="authority"',
    } == series


def test_a_renewed_host_goes_on_and_a_revoked_one_is_cut_off_at_once(net: TrustedFleet) -> None:
    install(net.authority, net.folder / "etc")
    renewed = parse_certificates((net.folder / "etc" / "agent.crt").read_bytes())[0]
    deadline_s = time.monotonic() + LIMIT_S
    while "loaded the new certificate" not in (net.folder / "agent.log").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    net.authority.mark_installed(HOST, renewed.fingerprint)
    while (
        net.host_when("state", "connected")["certificate_expires_unix_s"]
        < renewed.not_after_unix_s - 5
    ):  # its next look tells
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert net.ctl("hosts", "revoke", HOST, "--reason", "stolen").returncode == 0
    assert (
        net.host_when("message", f"the certificate of host {HOST} was revoked")["state"]
        == "unreachable"
    )
    checked = net.ctl("hosts", "check", HOST)
    assert f"the certificate of host {HOST} was revoked" in checked.stdout
    assert f"fleetctl deploy {HOST}" in checked.stdout
    install(net.authority, net.folder / "etc")
    net.host_when("state", "connected")


def test_show_tells_what_there_is_and_what_was_revoked(net: TrustedFleet) -> None:
    shown = json.loads(net.ctl("trust", "show", "--json").stdout)
    parties = {(one["role"], one["name"]) for one in shown["certificates"]}
    assert parties >= {("agent", HOST), ("controller", "controller"), ("authority", "")}
    assert (shown["version"], shown["authority_is_being_replaced"], shown["hosts_to_deploy"]) == (
        1,
        False,
        [],
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trust", "issue"], "needs the name of one user and a folder"),
        (["trust", "issue", "a/b", "-o", "new"], "cannot be the name in a certificate"),
        (["trust", "issue", "ann", "-o", "."], "exists already"),
        (["trust", "show", "ann"], "takes no names"),
        (["trust", "rotate", "--force"], "takes no --force"),
        (["trust", "revoke"], "needs the names of users"),
        (["trust", "revoke", "nobody"], "no certificate was issued to user nobody"),
        (["hosts", "revoke"], "needs the name of a host"),
        (["hosts", "revoke", "nobody"], "no certificate was issued to host nobody"),
        (["trust", "rotate", "nobody"], "no certificate was issued to host nobody"),
        (["trust", "show", "--trust", "nowhere"], "there is no certificate authority in"),
    ],
)
def test_a_users_mistake_is_told_without_a_traceback(
    net: TrustedFleet, words: list[str], told: str
) -> None:
    done = net.ctl(*words)
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (2, True, False), (
        done.stderr
    )
