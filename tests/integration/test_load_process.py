"""Promises of the load process with a real Ray: it measures, survives what is killed around it, and
leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from fleet_agent.core.gates import run_gates
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.load.load_process import LoadProcess, driver_env
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply
from fleet_protos.errors import LoadError
from fleet_protos.trial_types import GateEffect, Measure, Workload
from tests.fakes import streams
from tests.fakes.scripted_server import SILENCE, served
from tests.fakes.simulated_server import Running, simulated_server, speculative

pytestmark = pytest.mark.asyncio(loop_scope="module")

SINGLE = Workload(
    "single",
    concurrency=1,
    requests=4,
    prompts="builtin:chat",
    output_tokens=60,
    api="chat",
    request_timeout_s=60,
)
STALLS = (
    (streams.chat([" a"]),),
    (streams.chat([" a"]),),
    (streams.chat([" a"])[:100], SILENCE),
)  # two probes, then the first request
PARENT = """
import asyncio, sys
from pathlib import Path
from fleet_agent.load.load_process import LoadProcess
async def main():
    load = LoadProcess()
    await load.start(Path(sys.argv[1]))
    await load.wait_ready()
    print(load.recorded.session_id, load.recorded.temporary, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""

SLOW_RAY = {
    "__init__.py": "starts = []\ndef init(*_, **__): ...\ndef shutdown(): ...\n",
    "_private/__init__.py": "",
    "_private/parameter.py": "class RayParams:\n    def __init__(self, **_): ...\n",
    "_private/node.py": """
import ray
class Node:
    gcs_address = ""
    def __init__(self, *_, **__):
        ray.starts.append(None)
        if len(ray.starts) < {good}:
            raise Exception("The current node timed out during startup.")
    def kill_all_processes(self, **_): ...
""",
}
STARTED = """
from fleet_agent.load.workers.ray_session import RaySession
session = RaySession()
try:
    print("started at try", len(session.start().starts))
except RuntimeError as error:
    print(error)
finally:
    session.stop()
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with simulated_server(
        tmp_path_factory.mktemp("server"), *speculative(5), knobs={"time_scale": 50}
    ) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def load(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LoadProcess]:
    process = LoadProcess()
    await process.start(tmp_path_factory.mktemp("load"))
    await process.wait_ready()
    yield process
    await process.stop()


def members(session_id: int) -> list[psutil.Process]:
    """Processes of a session that live."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def session(load: LoadProcess) -> int:
    assert load.recorded is not None
    return load.recorded.session_id


def named(load: LoadProcess, name: str) -> psutil.Process:
    """The process of the load's session whose command begins with `name`."""
    return next(
        process
        for process in members(session(load))
        if Path(process.cmdline()[0]).name.startswith(name)
    )


def asked(simulated: Running, **fields: Any) -> LoadRequest:
    request = LoadRequest(
        simulated.url,
        SINGLE,
        model="demo/model",
        time_scale=50,
        speculation=True,
        draft_steps=5,
        draft_tokens=6,
    )
    return replace(request, **fields)


async def until(true: Callable[[], object], limit_s: float = 10) -> None:
    """Wait for a fact about other processes, of which no event tells."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_run_gives_metrics_facts_and_a_raw_file(
    load: LoadProcess, simulated: Running, tmp_path: Path
) -> None:
    path = tmp_path / "run.parquet"
    assert (await load.warm(asked(simulated, requests=2))).requests_ok == 2
    reply = await load.run(asked(simulated, parquet=str(path), metadata={"trial": "t-1"}))
    facts = RunFacts(**reply.facts)
    assert facts.client_capacity_tok_s is not None
    assert facts.client_use is not None
    assert facts.client_capacity_tok_s > 1000
    assert 0 < facts.client_use < 1
    assert (reply.requests_ok, reply.requests_failed, reply.output_tokens, reply.cache_flushed) == (
        4,
        0,
        240,
        True,
    )
    assert (facts.completion_tokens_min, facts.completion_tokens_max, facts.finish_reasons) == (
        60,
        60,
        {"length": 4},
    )
    assert facts.cached_token_ratio in (0, None)
    assert reply.metrics["accept_length"] > 1.05
    assert reply.metrics["output_tok_s"] > 0
    assert reply.metrics["accept_length_window"] == pytest.approx(
        reply.metrics["accept_length"], rel=0.03
    )
    assert reply.metrics["accept_rate_of_drafts"] == pytest.approx(
        (reply.metrics["accept_length"] - 1) / 5
    )
    raw = pd.read_parquet(path)
    assert (len(raw), int(raw["completion_tokens"].sum()), reply.parquet.size_bytes) == (
        4,
        240,
        path.stat().st_size,
    )
    assert pq.read_metadata(path).metadata[b"benchfleet.client_reads_in"] == b"c"
    wall_s = (raw["last_ns"].max() - raw["intended_ns"].min()) / 1e9
    assert reply.duration_s == pytest.approx(50 * wall_s)


@contextmanager
def foreign_client(server: Running) -> Iterator[None]:
    """Another client of the server, which sends one chat after the other."""
    body = {"model": "demo/model", "messages": [{"role": "user", "content": "mine"}]}
    stopped = threading.Event()

    def send() -> None:
        while not stopped.is_set():
            request = urllib.request.Request(
                f"{server.url}/v1/chat/completions",
                json.dumps(body | {"max_tokens": 48, "ignore_eos": True}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


async def test_the_requests_of_another_client_void_the_run(
    load: LoadProcess, simulated: Running
) -> None:
    request = asked(simulated, workload=replace(SINGLE, concurrency=2), speculation=False)
    await load.warm(request)

    def gates(reply: LoadReply) -> list[tuple[str, GateEffect]]:
        found = run_gates(RunFacts(**reply.facts), request.workload, Measure())
        return [(gate.code, gate.effect) for gate in found if gate.code.startswith("foreign")]

    alone = await load.run(request)
    assert alone.facts["counted_output_tokens"] == alone.output_tokens == 240
    assert gates(alone) == []
    with foreign_client(simulated):
        shared = await load.run(replace(request, run_index=1))
    assert shared.facts["counted_output_tokens"] > 240
    assert gates(shared) == [("foreign_requests", GateEffect.VOID_RUN)]


async def test_many_users_are_shared_by_two_workers(
    load: LoadProcess, simulated: Running, tmp_path: Path
) -> None:
    path = tmp_path / "run.parquet"
    workload = replace(SINGLE, concurrency=32, requests=64, output_tokens=20)
    reply = await load.run(asked(simulated, workload=workload, parquet=str(path)))
    assert reply.requests_ok == 64
    assert pd.read_parquet(path)["request"].tolist() == list(range(64))
    assert reply.facts["achieved_concurrency"] > 16


async def test_nothing_of_ray_listens_beyond_this_machine(load: LoadProcess) -> None:
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in members(session(load))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}


async def test_other_users_of_the_machine_cannot_reach_rays_sockets(load: LoadProcess) -> None:
    assert load.recorded is not None
    assert stat.S_IMODE(os.stat(load.recorded.temporary).st_mode) == 0o700
    assert os.listdir(load.recorded.temporary) == ["r"]


async def test_a_load_that_cannot_be_built_is_told_and_the_next_run_works(
    load: LoadProcess, simulated: Running
) -> None:
    with pytest.raises(
        LoadError, match="the prompts 'builtin:cat' are unknown: use one of builtin:chat"
    ):
        await load.run(asked(simulated, workload=replace(SINGLE, prompts="builtin:cat")))
    assert (await load.run(asked(simulated))).requests_ok == 4


async def test_runs_asked_for_together_are_carried_out_one_after_the_other(
    load: LoadProcess, simulated: Running
) -> None:
    replies = await asyncio.gather(
        *(load.run(asked(simulated, run_index=index)) for index in range(2))
    )
    first, second = sorted(replies, key=lambda reply: reply.started_unix_ns)
    assert second.started_unix_ns - first.started_unix_ns >= 1e9 * first.duration_s / 50


async def test_a_killed_task_is_told_within_seconds_and_the_next_run_works(
    load: LoadProcess, simulated: Running
) -> None:
    with served(*STALLS) as server:
        run = asyncio.ensure_future(load.run(asked(simulated, url=server.url, sglang=False)))
        await until(lambda: len(server.requests) == 3)
        named(load, "ray::run_shard").kill()
        async with asyncio.timeout(10):
            with pytest.raises(LoadError, match="load task died"):
                await run
    assert (await load.run(asked(simulated))).requests_ok == 4


async def test_a_cancelled_run_ends_at_once_and_the_next_one_works(
    load: LoadProcess, simulated: Running
) -> None:
    with served(*STALLS) as server:
        run = asyncio.ensure_future(load.run(asked(simulated, url=server.url, sglang=False)))
        await until(lambda: len(server.requests) == 3)
        await load.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(LoadError, match="cancelled"):
                await run
    assert (await load.run(asked(simulated))).requests_ok == 4


async def test_a_dead_raylet_is_told_the_next_run_starts_anew_and_stopping_leaves_nothing(
    load: LoadProcess, simulated: Running
) -> None:
    before = session(load)
    with served(*STALLS) as server:
        run = asyncio.ensure_future(load.run(asked(simulated, url=server.url, sglang=False)))
        await until(lambda: len(server.requests) == 3)
        named(load, "raylet").kill()
        async with asyncio.timeout(10):
            with pytest.raises(LoadError, match="Ray's process raylet has ended"):
                await run
    assert (await load.run(asked(simulated))).requests_ok == 4
    recorded = load.recorded
    assert recorded is not None
    assert recorded.session_id != before
    await load.stop()
    assert members(before) == members(recorded.session_id) == []
    assert not os.path.exists(recorded.temporary)  # noqa: ASYNC240 - nothing else runs here


async def test_a_load_process_that_is_killed_leaves_nothing_also_when_nobody_asks_for_it_again(
    tmp_path: Path,
) -> None:
    load = LoadProcess()
    await load.start(tmp_path)
    await load.wait_ready()
    recorded = load.recorded
    assert recorded
    os.kill(recorded.session_id, signal.SIGKILL)
    await until(lambda: not members(recorded.session_id) and not os.path.exists(recorded.temporary))
    await load.stop()


@pytest.mark.parametrize(
    ("good", "told"), [(3, "started at try 3"), (4, "The current node timed out during startup.")]
)
async def test_a_ray_that_needs_longer_than_its_own_limit_is_started_again_but_not_for_ever(
    tmp_path: Path, good: int, told: str
) -> None:
    for name, text in SLOW_RAY.items():
        path = tmp_path / "ray" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("{good}", str(good)))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTED, stdout=asyncio.subprocess.PIPE, env=env
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == told


async def test_stopping_while_ray_still_starts_leaves_nothing_and_does_not_wait(
    tmp_path: Path,
) -> None:
    load = LoadProcess()
    await load.start(tmp_path)
    recorded = load.recorded
    assert recorded is not None
    await until(lambda: len(members(recorded.session_id)) > 1)
    async with asyncio.timeout(5):
        await load.stop()
    assert members(recorded.session_id) == []
    assert not os.path.exists(recorded.temporary)  # noqa: ASYNC240 - nothing else runs here


async def test_an_agent_killed_by_sigkill_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env=driver_env(os.environ, tmp_path),
    )
    assert parent.stdout is not None
    session_id, temporary = (await parent.stdout.readline()).decode().split()
    assert len(members(int(session_id))) > 3
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: not members(int(session_id)))
    assert not os.path.exists(temporary)  # noqa: ASYNC240 - nothing else runs here


async def test_what_a_killed_process_was_told_to_cancel_cancels_nothing_of_the_next(
    simulated: Running, tmp_path: Path
) -> None:
    for number in range(10):
        (tmp_path / f"cancel-{number}").touch()
    load = LoadProcess()
    await load.start(tmp_path)
    await load.wait_ready()
    try:
        assert (await load.warm(asked(simulated, requests=2))).requests_ok == 2
    finally:
        await load.stop()
