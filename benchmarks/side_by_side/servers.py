"""Starts the servers that both clients measure: a simulated one, a real SGLang on the CPU, and the
truth server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.load import programs
from benchmarks.load.programs import (
    SERVER_CORE,
    MissingRequirement,
    Pace,
    ServerRecord,
    TruthServer,
    pinned,
)
from benchmarks.side_by_side.figures import Figures, Times, figures
from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.sglang.sglang_engine import SglangEngine
from fleet_agent.host.processes import processes_of_session
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.job_plan import make_plan, trial_spec
from fleet_protos.trial_types import TrialSpec

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "sglang-cpu.yaml"
READY_LIMIT_S: Final = 300.0
STOP_LIMIT_S: Final = 30.0
INFO_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What both clients do: so many requests of random token ids.

    The loop is closed with `concurrency`, or open at `rate_per_s` (Poisson).
    """

    name: str
    requests: int
    input_tokens: int
    output_tokens: int
    concurrency: int = 0
    rate_per_s: float = 0.0
    warm_up: int = 8


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready. Token ids are below `vocabulary`."""

    url: str
    model: str
    vocabulary: int
    kind: str

    def info_s(self) -> float:
        """Return the median seconds of GET /server_info, which bench_serving includes in its
        duration.
        """
        taken = []
        for _ in range(INFO_REPEATS):
            began_s = time.perf_counter()
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=READY_LIMIT_S) as answer:
                answer.read()
            taken.append(time.perf_counter() - began_s)
        return sorted(taken)[INFO_REPEATS // 2]


def environment() -> Path:
    """Return the folder with SGLang and its tiny model. Raises MissingRequirement."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "benchfleet"
        / "sglang-cpu"
    )
    if not (cache / "bin/python").exists():
        raise MissingRequirement(
            "SGLang is not installed: run `python tests/real_sglang/environment.py`, which creates"
            " its environment (1.2 GB)"
        )
    return cache


def _vocabulary() -> int:
    """Return the vocabulary size of the tiny model, whose tokenizer bench_serving uses."""
    size: int = json.loads((environment() / "tiny-model/config.json").read_text(encoding="utf-8"))[
        "vocab_size"
    ]
    return size


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def simulated(folder: Path) -> Iterator[Server]:
    """Run the simulated server in real time, without a prefix cache, inside the block.

    The prompts of `random-ids` may repeat by chance, and ours never do.
    """
    port = _free_port()
    words = [
        *(sys.executable, "-m", "fleet_simulator.server"),
        *("--model-path", "demo/model", "--port", str(port)),
    ]
    with (folder / "simulated.log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--disable-radix-cache"], stdout=log, stderr=log, **pinned(SERVER_CORE)
        )
    server = Server(f"http://127.0.0.1:{port}", "demo/model", _vocabulary(), "simulated")
    try:
        _wait_healthy(server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(
                f"the {server.kind} server ended with {process.returncode} before it was ready"
            )
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the {server.kind} server was not ready after {READY_LIMIT_S:.0f} s")


def _real_spec() -> TrialSpec:
    """Return the baseline trial of the example as the controller plans it, without a prefix
    cache.
    """
    text = EXAMPLE.read_text(encoding="utf-8").replace(
        "~/.cache/benchfleet/sglang-cpu", str(environment())
    )
    job = load_job(text, str(EXAMPLE)).job
    plan = make_plan(job, ["here"])
    spec = trial_spec(
        job,
        plan,
        next(trial for trial in plan.trials if trial.variant.is_baseline),
        1,
        "side-by-side",
    )
    return replace(
        spec, engine=replace(spec.engine, args={**spec.engine.args, "disable_radix_cache": True})
    )


@contextmanager
def real(folder: Path) -> Iterator[Server]:
    """Run SGLang 0.5.23 on the CPU, launched as the agent launches it, on the core for servers."""
    engine, spec = SglangEngine(), _real_spec()
    place = LaunchPlace(_free_port(), (), folder, "side-by-side/1")
    command = engine.launch_command(spec, place)
    with (folder / "sglang.log").open("wb") as log:
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(command.env),
            cwd=command.cwd,
            start_new_session=True,
            **pinned(SERVER_CORE),
        )
    try:
        asyncio.run(_wait_ready(engine, spec, place, process))
        yield Server(engine.url(spec, place), spec.engine.model_path, _vocabulary(), "real")
    finally:
        _stop(process)


async def _wait_ready(
    engine: SglangEngine, spec: TrialSpec, place: LaunchPlace, process: subprocess.Popen[bytes]
) -> None:
    async with asyncio.timeout(READY_LIMIT_S):
        while missing := await engine.check_ready(spec, engine.url(spec, place)):
            if process.poll() is not None:
                log = (place.folder / "sglang.log").read_text(errors="replace")
                raise RuntimeError(
                    f"SGLang ended with {process.returncode} ({missing}): {log[-1500:]}"
                )
            await asyncio.sleep(0.5)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to every process of the session, and SIGKILL by id to those left at the
    limit.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while (
        process.poll() is None or processes_of_session(process.pid)
    ) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for left in processes_of_session(process.pid):
        os.kill(left.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def truth_server(program: Path, folder: Path, pace: Pace) -> Iterator[tuple[Server, TruthServer]]:
    """Run a server that records when it sent what; its records are filled after the block."""
    with programs.truth_server(program, folder, pace) as server:
        yield Server(server.url, "truth", _vocabulary(), "truth"), server


def records_of_run(server: TruthServer, load: Load) -> list[ServerRecord]:
    """Return the server's last requests, which are those of the run; the ones before are the
    warm-up.
    """
    return sorted(server.records.values(), key=lambda one: one.received_ns)[-load.requests :]


def true_figures(records: Sequence[ServerRecord], load: Load) -> Figures:
    """Return the figures by the truth server's records.

    A request starts when the server has read it, and ends when the server is about to send the last
    event.
    """
    return figures(
        [
            Times(
                one.received_ns,
                tuple((at_ns, 1) for at_ns in one.sent_ns),
                one.sent_ns[-1],
                load.input_tokens,
                one.tokens,
            )
            for one in records
        ]
    )
