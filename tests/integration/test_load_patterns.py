"""Promises of load patterns against the simulated server: what was asked is what comes back, request by request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet_agent.load.asks import Asks
from fleet_agent.load.body import Target
from fleet_agent.load.columns import Columns
from fleet_agent.load.driver import plan_shards
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.shard import run_shard
from fleet_agent.load.summary import Conditions, Summary, summarise
from fleet_protos.trial import Lengths, Stage, Workload
from tests.fakes.simulated_server import Running, simulated_server

SCALE = 100.0


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with simulated_server(tmp_path_factory.mktemp("server"), knobs={"time_scale": SCALE}) as server:
        yield server


def measured(server: Running, workload: Workload, run_index: int = 0) -> tuple[Columns, Summary, Asks]:
    request = LoadRequest(server.url, workload, run_index=run_index, model="demo/model", time_scale=SCALE)
    [plan] = plan_shards(request, Target(server.url, "demo/model"), warm=False, shares=lambda users: 1)
    columns = run_shard(plan).columns
    assert plan.asks is not None
    return columns, summarise(columns, Conditions(workload, SCALE)), plan.asks


def test_each_answer_is_as_long_as_its_own_length(simulated: Running) -> None:
    workload = Workload("w", concurrency=4, requests=24, prompts="builtin:chat", output=Lengths("uniform", 3, 40), api="chat")
    columns, summary, asks = measured(simulated, workload)
    lengths = [asks.length(number) for number in range(24)]
    assert [request.response.completion_tokens for request in columns.requests()] == lengths
    assert (summary.requests_ok, summary.facts["off_length"], len(set(lengths)) > 5) == (24, 0, True)


def test_requests_of_a_ramp_are_sent_when_they_are_due(simulated: Running) -> None:
    stages = (Stage(0, 2, 40), Stage(2, 2, 20))
    workload = Workload("w", stages=stages, arrivals="constant", duration_s=60, prompts="builtin:chat", output_tokens=5, api="chat")
    columns, summary, _ = measured(simulated, workload)
    due_s = [(request.intended_ns - columns.requests()[0].intended_ns) / 1e9 * SCALE for request in columns.requests()]
    assert len(due_s) == 80
    assert sum(at < 40 for at in due_s) == 40
    assert sum(at < 20 for at in due_s) == 10
    assert summary.requests_ok == 80
