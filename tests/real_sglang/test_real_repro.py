"""Owns the promise of `fleetctl repro` on a real SGLang: the printed script starts that very
server, by hand, on another port.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.simulated_server import free_port
from tests.real_sglang.environment import cache, ensure

pytestmark = pytest.mark.real_sglang

FLEETCTL = (sys.executable, "-m", "fleet_controller.cli.main")
RUN_LIMIT_S, READY_LIMIT_S, STOP_LIMIT_S = 900.0, 300.0, 60.0
VALUE = "hf_0123456789-of-the-host"
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: {name}
model: {{path: {cache}/sglang-cpu/tiny-model}}
engine:
  kind: sglang
  python: {cache}/sglang-cpu/bin/python
  entry: serve
  gpus: 0
  cpu_binding: {cpu}
  args:
    device: cpu
    load_format: dummy
    attention_backend: torch_native
    sampling_backend: pytorch
    grammar_backend: none
    max_total_tokens: 4096
    max_running_requests: 4
    random_seed: 7
  env:
    SGLANG_USE_CPU_ENGINE: "1"
    HF_HUB_OFFLINE: "1"
    TORCHDYNAMO_DISABLE: "1"
    OMP_NUM_THREADS: "1"
    HF_TOKEN: secret://hub
  ready_timeout: 5m
workloads:
  single: {{concurrency: 1, output_tokens: 8}}
measure: {{launches: 1, runs: {{min: 1, max: 1}}}}
"""
_OF_ONE_START = (
    "port",
    "internal_states",
    "launch_command",
    "status",
    "nccl_port",
    "dist_init_addr",
    "server_start_time",
    "startup_time",
)


@dataclass(frozen=True, slots=True)
class ByHand:
    """A server that the script started, ready; `recorded`: what the agent's own server had shown."""

    process: psutil.Process
    port: int
    launched: Mapping[str, Any]
    recorded: Mapping[str, Any]


def fleetctl(folder: Path, *arguments: str) -> str:
    env = {
        **os.environ,
        "BENCHFLEET_STATE": str(folder / "state"),
        "BENCHFLEET_SECRETS": str(folder / "secrets"),
    }
    done = subprocess.run(
        (*FLEETCTL, *arguments),
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        shown: dict[str, Any] = json.loads(answer.read() or b"{}")
    return shown


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByHand]:
    ensure()
    folder = tmp_path_factory.mktemp("repro")
    (folder / "secrets").touch(0o600)
    (folder / "secrets").write_text(f"hub={VALUE}\n")
    text = JOB.format(
        name=f"repro-{uuid.uuid4().hex[:6]}", cache=cache(), cpu=max(os.sched_getaffinity(0))
    )
    (folder / "job.yaml").write_text(text)
    fleetctl(folder, "run", str(folder / "job.yaml"))
    events = [
        json.loads(line[line.index("{") :])
        for line in (folder / "state/agent/journal/events.jsonl").read_text().splitlines()
    ]
    told = {
        name: event[name]
        for event in events
        for name in ("server_launched", "configuration_proved")
        if name in event
    }
    (trial,) = (folder / "state/agent/artifacts").iterdir()
    script = folder / "start.sh"
    script.write_text(fleetctl(folder, "repro", trial.name))
    yield from started(script, folder, told)


def started(script: Path, folder: Path, told: Mapping[str, Any]) -> Iterator[ByHand]:
    port = free_port()
    env = {
        **os.environ,
        "BENCHFLEET_SECRETS": str(folder / "secrets"),
        "PORT": str(port),
        "NCCL_ALGO": "of this shell",
    }
    with (folder / "by-hand.log").open("wb") as log:
        child = subprocess.Popen(
            ("sh", str(script)), env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until_ready(child, port, folder / "by-hand.log")
        yield ByHand(
            psutil.Process(child.pid),
            port,
            told["server_launched"],
            told["configuration_proved"]["effective_args"],
        )
        child.send_signal(signal.SIGTERM)
        child.wait(STOP_LIMIT_S)
    finally:
        for process in [process for process in psutil.process_iter() if _is_of(process, child.pid)]:
            process.kill()
        child.wait(STOP_LIMIT_S)


def _is_of(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except OSError:
        return False


def until_ready(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        assert child.poll() is None, log.read_text()[-3000:]
        try:
            get(port, "/health_generate")
            return
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.5)
    raise AssertionError(f"not ready:\n{log.read_text()[-3000:]}")


def test_the_script_starts_the_server_with_the_recorded_words_on_the_port_given(
    by_hand: ByHand,
) -> None:
    recorded = by_hand.launched["argv"]
    python = [] if recorded[0].endswith("/python") else recorded[:3]  # taskset binds and is gone
    words = recorded[len(python) :]
    words[words.index("--port") + 1] = str(by_hand.port)
    assert by_hand.process.cmdline()[-len(words) + 1 :] == words[1:]
    assert by_hand.process.cpu_affinity() == [max(os.sched_getaffinity(0))]


def test_it_has_exactly_the_recorded_environment_and_the_hosts_secret(by_hand: ByHand) -> None:
    recorded = dict(by_hand.launched["env"])
    assert recorded.pop("BENCHFLEET_LAUNCH")
    assert recorded["HF_TOKEN"] == "secret://hub"
    seen = by_hand.process.environ()
    assert {name: seen.get(name) for name in recorded} == {**recorded, "HF_TOKEN": VALUE}
    assert "NCCL_ALGO" not in seen and "BENCHFLEET_LAUNCH" not in seen


def test_what_takes_effect_is_what_took_effect_in_the_trial(by_hand: ByHand) -> None:
    shown = get(by_hand.port, "/server_info")
    differing = {
        name: (value, shown.get(name))
        for name, value in by_hand.recorded.items()
        if value != shown.get(name)
    }
    assert {name: pair for name, pair in differing.items() if name not in _OF_ONE_START} == {}
    assert by_hand.recorded["random_seed"] == shown["random_seed"] == 7
