"""Promises of a shard on real sockets: what it may keep in memory changes no result, its slots
begin one by one, its cost is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.driver import Driver
from fleet_agent.load.messages import RUN, LoadRequest
from fleet_agent.load.workers.local_workers import ShardResults
from fleet_agent.load.workers.shard import run_shard
from fleet_agent.load.workers.shard_plan import ShardLimits, ShardPlan
from fleet_agent.load.workload.prompts import PromptDraw
from fleet_agent.load.workload.request_plan import build_request_plan
from fleet_protos.errors import LoadError
from fleet_protos.trial_types import Workload
from tests.fakes import streams
from tests.fakes.scripted_server import served

CHAT = streams.chat([" a", " b", " c"], tokens=9)
DRAW = PromptDraw("builtin:chat", 1, 0)
NO_ROOM = ShardLimits(prepared=1, raw_bytes=0, chunks=0)


def plan(url: str, **fields: object) -> ShardPlan:
    values: dict[str, object] = {
        "target": LoadTarget(url, "m"),
        "api": "chat",
        "draw": DRAW,
        "output_tokens": 9,
        "timeout_s": 5,
    }
    return ShardPlan(**{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", [{"concurrency": 2}, {"offsets_s": tuple(at / 100 for at in range(20))}]
)
def test_a_shard_without_room_measures_the_same_and_leaves_chunks_in_its_file(
    tmp_path: Path, pattern: dict[str, object]
) -> None:
    with served((CHAT,)) as server:
        result = run_shard(
            plan(
                server.url,
                requests=20,
                spill_folder=str(tmp_path / "chunks"),
                limits=NO_ROOM,
                **pattern,
            )
        )
    requests = result.columns.requests()
    assert result.columns.spilled
    assert [path.name for path in (tmp_path / "chunks").iterdir()] == ["0.chunks"]
    asks = build_request_plan(Workload(prompts="builtin:chat", output_tokens=9), DRAW)
    assert [request.prompt_digest for request in requests] == [
        asks.planned_request(number).digest for number in range(20)
    ]
    assert {(request.response.completion_tokens, request.asked_tokens) for request in requests} == {
        (9, 9)
    }
    assert {len(request.response.chunk_ns) for request in requests} == {3}


def test_slots_begin_one_after_the_other_over_all_shards_and_their_requests_are_due_then() -> None:
    with served((CHAT,)) as server:
        result = run_shard(plan(server.url, requests=32, first=1, step=2, concurrency=4, users=8))
    requests = result.columns.requests()
    ends = {request.end_ns for request in requests}
    first = [
        request.intended_ns - result.start_ns
        for request in requests
        if request.intended_ns not in ends
    ]
    assert (
        sorted(first) == [200_000, 600_000, 1_000_000, 1_400_000][: len(first)]
    )  # fewer where the server answers sooner
    assert all(request.sent_ns >= request.intended_ns for request in requests)


def test_what_the_client_used_of_a_core_is_told_and_does_not_count_what_came_before() -> None:
    with served((CHAT,)) as server:
        used_s, began = time.thread_time(), time.monotonic()
        result = run_shard(plan(server.url, requests=400, concurrency=4))
        assert 0 < result.cpu_s < time.thread_time() - used_s < time.monotonic() - began
    assert 0 < result.decode_s < time.monotonic() - began


@dataclass
class OwnThread:
    """A crew of this process, whose shards have no room for chunks."""

    fails: bool = False

    async def prepare_workers(self) -> None: ...

    def shard_count(self, users: int) -> int:
        return 2 if users > 1 else 1

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        return target

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
        results = [
            await asyncio.to_thread(run_shard, replace(plan, limits=NO_ROOM)) for plan in plans
        ]
        assert all(result.columns.spilled for result in results)
        if self.fails:
            raise LoadError("a shard died")
        return ShardResults(results)

    def cancel(self, number: int) -> None: ...


def asked(url: str, path: Path) -> LoadRequest:
    workload = Workload(
        "w",
        concurrency=2,
        requests=10,
        prompts="builtin:chat",
        output_tokens=9,
        request_timeout_s=5,
    )
    return LoadRequest(url, workload, sglang=False, parquet=str(path), metadata={"trial": "t-1"})


async def test_a_run_that_was_too_large_for_memory_is_reported_and_recorded_and_leaves_no_chunks_behind(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.parquet"
    with served((CHAT,)) as server:
        reply = await Driver(None, OwnThread(), -1, "", tmp_path / "load").measure(
            7, RUN, asked(server.url, path)
        )
    raw = pd.read_parquet(path)
    assert (reply.requests_ok, reply.output_tokens) == (10, 90)
    assert reply.metrics["client_cpu_us_per_token"] == pytest.approx(
        1e6 * reply.facts["client_cpu_s"] / 90
    )
    assert (raw["request"].tolist(), [len(times) for times in raw["chunk_ns"]]) == (
        list(range(10)),
        [3] * 10,
    )
    assert list((tmp_path / "load").iterdir()) == []


async def test_a_run_that_fails_leaves_no_chunks_behind(tmp_path: Path) -> None:
    with served((CHAT,)) as server, pytest.raises(LoadError, match="a shard died"):
        await Driver(None, OwnThread(fails=True), -1, "", tmp_path / "load").measure(
            7, RUN, asked(server.url, tmp_path / "x")
        )
    assert list((tmp_path / "load").iterdir()) == []
