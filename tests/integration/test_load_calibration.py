"""Promises of the calibration: the client's own limit, over real sockets, quickly, and never a
wrong one in silence.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading
import time
from dataclasses import fields, replace

import pytest

from fleet_agent.core.gates import CLIENT_USE_MAX
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.load.client.request_body import LoadTarget, http_request
from fleet_agent.load.client.response_decoder import decode_response
from fleet_agent.load.client.timed_http_client import Endpoint, Exchange
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.results.request_columns import Columns
from fleet_agent.load.workers.calibration import (
    Calibration,
    ClientWork,
    ShardCapacity,
    add_client_use,
    calibrate,
)
from fleet_agent.load.workers.null_server import LONG_PATH, SHORT_PATH, NullServer
from fleet_agent.load.workers.shard import run_shard
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult
from fleet_agent.load.workload.prompts import PromptDraw
from tests.fakes import streams
from tests.fakes.scripted_server import served


async def answered(path: str, events: int) -> Exchange:
    with NullServer(events) as server:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve())
            endpoint = Endpoint(server.url)
            exchange = await endpoint.exchange(http_request(LoadTarget(server.url), path, {}), 5)
            endpoint.close()
            serving.cancel()
    return exchange


async def test_what_the_null_server_writes_reads_as_a_whole_answer() -> None:
    for path, tokens in ((SHORT_PATH, 1), (LONG_PATH, 20)):
        exchange = await answered(path, 20)
        response = decode_response(
            exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail
        )
        assert (response.error_kind, response.completion_tokens, len(response.chunk_ns)) == (
            "",
            tokens,
            tokens,
        )


async def test_each_event_of_a_stream_is_a_read_of_its_own() -> None:
    exchange = await answered(LONG_PATH, 20)
    assert len(exchange.reads) == 21  # the last one has the end


def test_one_shard_is_calibrated_within_the_time_allowed_for_it() -> None:
    calibrate()
    begin_s, cpu_s = time.perf_counter(), time.thread_time()
    capacity = calibrate()
    took_s, used_s = time.perf_counter() - begin_s, time.thread_time() - cpu_s
    assert capacity is not None
    assert 5_000 < capacity.tok_s < 5_000_000
    assert 500 < capacity.requests_s < 500_000
    assert capacity.tok_s > capacity.requests_s
    assert used_s < 0.3, f"{used_s:.3f} s of CPU in {took_s:.3f} s"


def test_it_leaves_no_thread_no_socket_and_the_collector_as_it_was() -> None:
    threads = threading.active_count()
    calibrate()
    assert gc.isenabled()
    gc.disable()
    try:
        calibrate()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert threading.active_count() == threads


@pytest.mark.parametrize("left", [0, 1, 2, 12, 40])
def test_a_process_that_may_open_few_files_has_no_capacity_rather_than_a_wrong_one(
    left: int,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + left, hard))
    try:
        assert calibrate(limit_s=0.2) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_answer_that_is_not_whole_gives_no_capacity() -> None:
    assert (
        calibrate(limit_s=0.002) is None
    )  # far less than a stream of 40 turns takes, each of which lets news gather


def test_the_use_of_a_run_is_that_of_its_reads_and_requests_over_its_shards() -> None:
    capacity = ShardCapacity(tok_s=100_000.0, requests_s=10_000.0)
    assert capacity.used_share(reads=50_000, requests=2_000, wall_s=1.0, shards=1) == pytest.approx(
        0.7
    )
    assert capacity.used_share(reads=50_000, requests=2_000, wall_s=2.0, shards=2) == pytest.approx(
        0.175
    )


SUMMARY = LoadReply(
    {"output_tok_s": 400.0}, {"requests_ok": 90}, {}, 90, 10, 40_000, duration_s=100.0
)


def test_what_a_run_took_is_wall_time_whatever_the_model_of_the_server() -> None:
    """100 s of model time in 1 s: 40,000 reads and 100 requests, failed ones too, in a second on
    two shards.
    """
    found = add_client_use(
        SUMMARY,
        ShardCapacity(tok_s=50_000.0, requests_s=1_000.0),
        ClientWork(40_000, shards=2, cpu_s=0.5, time_scale=100.0),
    )
    assert found.facts == {
        "requests_ok": 90,
        "client_capacity_tok_s": 100_000.0,
        "client_use": pytest.approx(0.45),
    }
    assert found.metrics == {
        "output_tok_s": 400.0,
        "client_capacity_tok_s": 100_000.0,
        "client_use_ratio": pytest.approx(0.45),
    }


def test_cores_that_were_busier_than_the_rate_explains_count_as_they_were() -> None:
    found = add_client_use(
        SUMMARY,
        ShardCapacity(tok_s=50_000.0, requests_s=1_000.0),
        ClientWork(40_000, shards=2, cpu_s=1.5, time_scale=100.0),
    )
    assert found.facts["client_use"] == pytest.approx(0.75)


def test_without_a_capacity_the_cores_alone_are_told_and_without_either_nothing() -> None:
    found = add_client_use(SUMMARY, None, ClientWork(40_000, shards=2, cpu_s=1.5, time_scale=100.0))
    assert found.facts == {
        "requests_ok": 90,
        "client_capacity_tok_s": None,
        "client_use": pytest.approx(0.75),
    }
    assert found.metrics == {"output_tok_s": 400.0, "client_use_ratio": pytest.approx(0.75)}
    assert add_client_use(SUMMARY, None, ClientWork(40_000, shards=2, time_scale=100.0)) == SUMMARY


def test_a_shard_tells_its_reads_and_many_events_in_one_are_one() -> None:
    with served((streams.chat([" a"] * 50),)) as server:
        plan = ShardPlan(
            LoadTarget(server.url, "m"),
            "chat",
            PromptDraw("builtin:chat", 1, 0),
            output_tokens=50,
            requests=20,
            concurrency=2,
        )
        result = run_shard(plan)
    assert result.columns.chunks == 1000
    assert 20 <= result.reads < 100
    assert ClientWork.from_results([result, result], is_open=False, time_scale=3.0) == ClientWork(
        2 * result.reads, 2, 2 * result.cpu_s, 3.0
    )


def test_a_core_that_an_open_loop_uses_to_wait_for_the_next_moment_is_no_load() -> None:
    result = ShardResult(Columns(), 0, (), False, cpu_s=0.9, reads=5)
    assert ClientWork.from_results([result], is_open=True, time_scale=1.0) == ClientWork(5, 1, 0.0)


def test_a_run_in_which_nothing_succeeded_gets_no_metric_and_one_without_a_time_says_nothing() -> (
    None
):
    failed = replace(SUMMARY, metrics={}, requests_ok=0, requests_failed=100)
    assert add_client_use(failed, ShardCapacity(1e5, 1e4), ClientWork(0, 1)).metrics == {}
    assert add_client_use(
        replace(failed, duration_s=0.0), ShardCapacity(1e5, 1e4), ClientWork(0, 1)
    ).facts == {"requests_ok": 90}


def test_the_facts_are_those_that_the_gates_read_and_the_limit_is_seventy_percent() -> None:
    found = add_client_use(SUMMARY, ShardCapacity(1e5, 1e4), ClientWork(1, 1)).facts.keys() - {
        "requests_ok"
    }
    assert found <= {field.name for field in fields(RunFacts)}
    assert CLIENT_USE_MAX == 0.70


async def test_it_is_done_once_and_then_remembered() -> None:
    calibration = Calibration()
    first = await calibration.measure_once()
    assert first is not None
    assert await calibration.measure_once() is first
