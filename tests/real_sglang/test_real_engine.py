"""Owns the promises of the SGLang adapter on real SGLang servers on the CPU, one for each variant
of examples/sglang-cpu.yaml.
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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.sglang.sglang_engine import SglangEngine
from fleet_agent.host.processes import (
    ProcessStat,
    RecordedSession,
    members_of,
    processes_of_session,
    read_stat,
)
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.job_plan import make_plan, trial_spec
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_protos.errors import ServerError
from fleet_protos.trial_types import GateEffect, TrialSpec
from tests.real_sglang.environment import cache, ensure

pytestmark = pytest.mark.real_sglang

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sglang-cpu.yaml"
VARIANTS = ["speculation=none", "speculation=standalone"]
READY_LIMIT_S, STOP_LIMIT_S = 300.0, 30.0
TOKENS = 48
ENGINE = SglangEngine()


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    spec: TrialSpec
    url: str
    port: int
    log: Path
    process: subprocess.Popen[bytes]
    session: RecordedSession

    @property
    def speculates(self) -> bool:
        return "speculative_algorithm" in self.spec.engine.args


def specs() -> dict[str, TrialSpec]:
    """The first trial of each variant of the example, as the controller makes them, on this
    machine's cache.
    """
    ensure()
    text = EXAMPLE.read_text(encoding="utf-8").replace("~/.cache/benchfleet", str(cache()))
    job = load_job(text, str(EXAMPLE)).job
    plan = make_plan(job, ["here"])
    return {
        trial.variant.name: trial_spec(job, plan, trial, 1, "job")
        for trial in reversed(plan.trials)
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def launch(spec: TrialSpec, folder: Path) -> Running:
    """The adapter's command in a session of its own; nothing is waited for."""
    place = LaunchPlace(free_port(), (), folder, f"real/{folder.name}")
    command, log = ENGINE.launch_command(spec, place), folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(command.env),
            cwd=command.cwd,
            start_new_session=True,
        )
    stat = read_stat(process.pid)
    session = RecordedSession(
        process.pid, process.pid, stat.start_ticks if stat else 0, place.token, str(log)
    )
    return Running(spec, ENGINE.url(spec, place), place.port, log, process, session)


async def become_ready(running: Running) -> float:
    """Seconds from now until the adapter calls it ready. Fails when the process ends or the limit
    is over.
    """
    began_s = time.monotonic()
    async with asyncio.timeout(READY_LIMIT_S):
        while missing := await ENGINE.check_ready(running.spec, running.url):
            assert running.process.poll() is None, (
                f"{missing}\n{running.log.read_text(errors='replace')[-3000:]}"
            )
            await asyncio.sleep(0.5)
    return time.monotonic() - began_s


def members(running: Running) -> tuple[ProcessStat, ...]:
    return members_of(running.session)


def terminate(running: Running) -> float:
    """SIGTERM to every process of the server; seconds until all have ended. What is left at the
    limit is killed by its id.
    """
    began_s = time.monotonic()
    if running.process.poll() is None:
        os.killpg(running.session.session_id, signal.SIGTERM)
    try:
        running.process.wait(STOP_LIMIT_S)
        while members(running) and time.monotonic() < began_s + STOP_LIMIT_S:
            time.sleep(0.05)
        return time.monotonic() - began_s
    finally:
        for process in members(running):
            os.kill(process.pid, signal.SIGKILL)
        running.process.wait()


def resident_mib(running: Running) -> float:
    pages = (
        int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        for process in members(running)
    )
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture(scope="module", params=VARIANTS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    running = launch(specs()[request.param], tmp_path_factory.mktemp("server"))
    try:
        ready_s = asyncio.run(become_ready(running))
        print(
            f"\n{request.param}: ready after {ready_s:.0f} s, {resident_mib(running):.0f} MiB resident"
        )
        yield running
    finally:
        terminate(running)


def post(running: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        running.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        value: dict[str, Any] = json.load(answer)
        return value


def generate(running: Running, prompt: str, tokens: int = TOKENS) -> dict[str, Any]:
    return post(
        running,
        "/generate",
        {
            "text": prompt,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        },
    )


def test_the_example_has_the_variants_that_are_tested() -> None:
    assert sorted(specs()) == sorted(VARIANTS)


async def test_everything_that_was_asked_for_took_effect(server: Running) -> None:
    proved = await ENGINE.prove_configuration(server.spec, server.url, server.log)
    assert proved.gates == ()
    assert proved.versions["sglang"] == "0.5.23"
    assert proved.versions["torch"].startswith("2.13.0")
    assert proved.effective_args["attention_backend"] == "intel_amx"
    assert bool(proved.effective_args["speculative_algorithm"]) == server.speculates


async def test_a_server_that_was_launched_otherwise_voids_the_trial(server: Running) -> None:
    other = replace(server.spec.engine, args={**server.spec.engine.args, "max_running_requests": 8})
    proved = await ENGINE.prove_configuration(
        replace(server.spec, engine=other), server.url, server.log
    )
    assert [(gate.code, gate.effect) for gate in proved.gates] == [
        ("args_changed_by_server", GateEffect.VOID_TRIAL)
    ]


async def test_a_server_with_another_model_is_never_taken_for_ours(server: Running) -> None:
    other = replace(server.spec, engine=replace(server.spec.engine, model_path="/another/model"))
    with pytest.raises(ServerError):
        await ENGINE.check_ready(other, server.url)


def test_the_launcher_has_exactly_the_environment_of_its_command(server: Running) -> None:
    place = LaunchPlace(server.port, (), server.log.parent, server.session.token)
    shown = (
        Path(f"/proc/{server.process.pid}/environ").read_bytes().decode().rstrip("\0").split("\0")
    )
    assert dict(entry.split("=", 1) for entry in shown) == dict(
        ENGINE.launch_command(server.spec, place).env
    )


def test_a_chat_answer_has_exactly_the_tokens_that_were_asked(server: Running) -> None:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "tell me of the sea"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    answer = post(server, "/v1/chat/completions", body)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (
        TOKENS,
        "length",
    )


def test_speculation_accepts_more_than_a_token_a_step(server: Running) -> None:
    began_s = time.monotonic()
    meta = generate(server, "the wind and the ships")["meta_info"]
    rate = meta["completion_tokens"] / (time.monotonic() - began_s)
    print(
        f"\n{server.spec.variant}: {rate:.0f} tok/s, accept length {meta.get('spec_accept_length')}"
    )
    assert ("spec_accept_length" in meta) == server.speculates
    assert not server.speculates or meta["spec_accept_length"] > 1.05


GREEDY: dict[str, list[list[int]]] = {}


def test_speculation_changes_no_token_of_a_greedy_answer(server: Running) -> None:
    prompts = (
        "hello there my friend",
        "a b c d e f a b c d e f a b",
        "write a list of what to pack for a journey to the sea",
    )
    GREEDY[server.spec.variant] = [generate(server, prompt)["output_ids"] for prompt in prompts]
    assert all(tokens == GREEDY[VARIANTS[0]] for tokens in GREEDY.values())


def test_the_server_keeps_the_contract_that_the_simulated_one_keeps(server: Running) -> None:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "tests/contract",
        "-k",
        "real",
    ]  # none selected: 5, not 0
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "BENCHFLEET_SGLANG_URL": server.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_term_ends_every_process_of_the_server(server: Running) -> None:
    assert len(processes_of_session(server.session.session_id)) >= 3, (
        "launcher, scheduler and detokenizer"
    )
    took_s = terminate(server)
    print(f"\n{server.spec.variant}: ended {took_s:.1f} s after SIGTERM")
    assert members(server) == ()
    assert processes_of_session(server.session.session_id) == ()


def test_a_wrong_speculative_argument_is_told_as_such(tmp_path: Path) -> None:
    spec = specs()[VARIANTS[1]]
    args = {**spec.engine.args, "attention_backend": "torch_native"}
    running = launch(replace(spec, engine=replace(spec.engine, args=args)), tmp_path)
    try:
        exit_code = running.process.wait(READY_LIMIT_S)
    finally:
        terminate(running)
    assert exit_code
    reader = LogReader()
    reader.feed(running.log.read_bytes())
    told = reader.finish()
    assert told.failure_class == "spec_args_invalid", told.cause_line
    assert "torch_native" in told.cause_line
