"""`fleetctl up` with a fleet file: two agents on loopback ports with certificates, a third host
that is not there, a job to its verdict.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fleet_controller.pki.authority import Authority
from fleet_controller.pki.initialize import init_trust_folder
from fleet_transport.tls_identity import agent_name

LIMIT_S = 120
FLEET = """\
apiVersion: benchfleet/v1
kind: Fleet
currency: EUR
defaults: {{simulated_gpus: 8, cost_per_hour: 36}}
hosts:
  - {{name: alpha, address: 127.0.0.1, agent_port: {0}, labels: {{group: one}}}}
  - {{name: beta, address: 127.0.0.1, agent_port: {1}, labels: {{group: two}}}}
  - {{name: gamma, address: 127.0.0.1, agent_port: {2}, labels: {{group: two}}}}
"""
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: fleet-up
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, stop_timeout: 5s, simulation: {time_scale: 200, seed: 3}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, requests: 1, output_tokens: 100}}
measure: {launches: 1, runs: {min: 2, max: 2}, warmup: 1}
hosts:
  labels: {group: one}
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder with a fleet file, a job and the state of a controller."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "BENCHFLEET_STATE": str(self.folder / "state"),
            "HOME": str(self.folder),
        }

    def fleetctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "fleet_controller.cli.main", *words]
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    @contextmanager
    def up(self) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
        """`fleetctl up` and the lines that it tells until it is ready."""
        argv = [sys.executable, "-m", "fleet_controller.cli.main", "up"]
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=self.env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            lines = [process.stderr.readline()]
            while lines[-1] and "fleetctl submit FILE" not in lines[-1]:
                lines.append(process.stderr.readline())
            yield process, lines
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)

    @contextmanager
    def watching(self, job: str) -> Iterator[Iterator[str]]:
        """What `fleetctl watch` tells of a job, line by line."""
        argv = [sys.executable, "-m", "fleet_controller.cli.main", "watch", job]
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=self.env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            yield iter(process.stderr.readline, "")
        finally:
            process.kill()
            process.communicate(timeout=LIMIT_S)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def agent(folder: Path, authority: Authority, host: str, port: int) -> Iterator[None]:
    """A deployed agent as `deploy` would leave it, but for the machine of its own."""
    folder.mkdir()
    issued = authority.issue_agent(host)
    texts = {
        "ca.crt": authority.authorities_pem(),
        "agent.crt": issued.certificate_pem,
        "agent.key": issued.key_pem,
    }
    for name, text in {**texts, "revoked.json": authority.revoked_text().encode()}.items():
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o600)
    names = {
        "authorities": "ca.crt",
        "certificate": "agent.crt",
        "key": "agent.key",
        "revoked": "revoked.json",
    }
    tls = "".join(f'{key} = "{folder / name}"\n' for key, name in names.items())
    top = f'host = "{host}"\nlisten = "127.0.0.1:{port}"\nstate = "{folder / "state"}"\nsimulated_gpus = 8\ngpus = 0\n'
    (folder / "agent.toml").write_text(f"{top}[tls]\n{tls}")
    argv = [sys.executable, "-m", "fleet_agent.main", "--config", str(folder / "agent.toml")]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(argv, stderr=log, start_new_session=True)
    try:
        files = authority.controller_files()
        credentials = grpc.ssl_channel_credentials(
            texts["ca.crt"], files.key.read_bytes(), files.certificate.read_bytes()
        )
        options = [("grpc.ssl_target_name_override", agent_name(host))]
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=90)
    assert code == 0, (folder / "log").read_text()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two of the three hosts have an agent."""
    folder = tmp_path_factory.mktemp("fleet")
    ports = free_ports(3)
    (folder / "fleet.yaml").write_text(FLEET.format(*ports))
    (folder / "job.yaml").write_text(JOB)
    (folder / "state").mkdir()
    init_trust_folder(folder / "state" / "trust", "me")
    authority = Authority.open(folder / "state" / "trust")
    with (
        agent(folder / "alpha", authority, "alpha", ports[0]),
        agent(folder / "beta", authority, "beta", ports[1]),
    ):
        yield Bench(folder)


def test_up_follows_the_hosts_of_the_file_and_a_job_runs_on_one_to_its_verdict(
    bench: Bench,
) -> None:
    with bench.up() as (_, told):
        assert told[1:3] == [
            "fleet.yaml: 2 of 3 hosts connected\n",
            "  gamma: no certificate was ever issued to host gamma: `fleetctl deploy gamma` issues a new one\n",
        ]
        hosts = {
            host["host"]: host
            for host in json.loads(bench.fleetctl("hosts", "ls", "--json").stdout)["hosts"]
        }
        assert {name: host["state"] for name, host in hosts.items()} == {
            "alpha": "connected",
            "beta": "connected",
            "gamma": "unreachable",
        }
        assert (
            hosts["alpha"]["certificate_expires_unix_s"]
            and hosts["gamma"]["certificate_expires_unix_s"] is None
        )
        assert {host["cost_per_hour"] for host in hosts.values()} == {36.0}
        ran = bench.fleetctl("submit", "job.yaml", "--watch", "--json")
        assert ran.returncode == 0, ran.stderr
    comparison = json.loads(ran.stdout)
    assert {row["host"] for row in comparison["rows"]} == {"alpha"}
    assert "estimated cost at the prices in fleet.yaml: about" in ran.stderr and "EUR" in ran.stderr


def test_submit_says_which_hosts_its_trials_wait_for(bench: Bench) -> None:
    (bench.folder / "two.yaml").write_text(
        JOB.replace("group: one", "group: two").replace("fleet-up", "two")
    )
    with bench.up():
        waiting = bench.fleetctl("submit", "two.yaml")
        assert waiting.returncode == 0, waiting.stderr
        job = waiting.stdout.split()[1].rstrip(":")
        assert (
            "1 of 2 hosts do not answer now; 2 trials wait for them:\n  gamma: " in waiting.stderr
        )
        assert bench.fleetctl("cancel", job).returncode == 0
        (bench.folder / "three.yaml").write_text(
            JOB.replace("group: one", "group: three").replace("fleet-up", "three")
        )
        refused = bench.fleetctl("submit", "three.yaml")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "three.yaml:11:19: no host has the label group: three" in refused.stderr


def test_a_job_whose_controller_was_killed_is_ended_on_the_hosts_of_the_fleet_file(
    bench: Bench,
) -> None:
    endless = JOB.replace("min: 2, max: 2", "min: 5000, max: 5000").replace("fleet-up", "endless")
    (bench.folder / "endless.yaml").write_text(endless)
    with bench.up() as (controller, _):
        job = bench.fleetctl("submit", "endless.yaml").stdout.split()[1].rstrip(":")
        with bench.watching(job) as lines:
            assert next(line for line in lines if ": measuring" in line or ": run " in line)
        controller.kill()
    refused = bench.fleetctl("resume", job)
    assert (refused.returncode, "`fleetctl up` continues it" in refused.stderr) == (2, True)
    ended = bench.fleetctl("cancel", job)
    assert (ended.returncode, "on the hosts of fleet.yaml" in ended.stderr) == (0, True), (
        ended.stderr
    )
    trials = json.loads(bench.fleetctl("show", job, "--json").stdout)["trials"]
    assert {trial["outcome"] for trial in trials if trial["phase"] == "over"} <= {"cancelled"}
    assert "over" in {trial["phase"] for trial in trials}


def test_show_tells_all_that_is_known_of_a_host(bench: Bench) -> None:
    with bench.up():
        shown = bench.fleetctl("hosts", "show", "beta", "gamma")
        unknown = bench.fleetctl("hosts", "show", "gama")
    assert shown.stdout.startswith("host beta\n  state           connected\n")
    assert (
        "  certificate     expires 20" in shown.stdout
        and "  why             no certificate was ever issued" in shown.stdout
    )
    assert (unknown.returncode, "did you mean gamma?" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda text: text.replace("kind: Fleet", "kind: Fleet\npassword: x"),
            "error password_key",
        ),
        (
            lambda text: text.replace("beta", "alpha"),
            "error duplicate_host: `alpha` is listed twice: first in line 6",
        ),
    ],
)
def test_a_wrong_fleet_file_starts_nothing_and_is_told_with_its_lines(
    bench: Bench, spoil: Callable[[str], str], told: str
) -> None:
    (bench.folder / "wrong.yaml").write_text(spoil((bench.folder / "fleet.yaml").read_text()))
    for words in (["up", "--fleet", "wrong.yaml"], ["lint", "wrong.yaml"]):
        ended = bench.fleetctl(*words)
        assert ended.returncode == 2
        assert told in ended.stdout + ended.stderr
