"""Promises of load patterns against the simulated server: what was asked is what comes back,
request by request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.results.request_columns import Columns
from fleet_agent.load.results.run_summary import RunConditions, summarise
from fleet_agent.load.shard_planning import plan_shards
from fleet_agent.load.workers.shard import run_shard
from fleet_agent.load.workload.request_plan import RequestPlan
from fleet_agent.load.workload.synthetic_text import WORDS_PER_TOKEN
from fleet_protos.attachment import Prompts, Trace, pack
from fleet_protos.trial_types import Lengths, Part, SharedPrefix, Stage, Workload
from tests.fakes.simulated_server import Running, simulated_server

SCALE = 100.0


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with simulated_server(tmp_path_factory.mktemp("server"), knobs={"time_scale": SCALE}) as server:
        yield server


def measured(
    server: Running, workload: Workload, run_index: int = 0, **files: str
) -> tuple[Columns, LoadReply, RequestPlan]:
    request = LoadRequest(
        server.url, workload, run_index=run_index, model="demo/model", time_scale=SCALE, files=files
    )
    [plan] = plan_shards(
        request, LoadTarget(server.url, "demo/model"), warm=False, shard_count=lambda users: 1
    )
    columns = run_shard(plan).columns
    assert plan.request_plan is not None
    planned = plan.request_plan.planned_cached_share(columns.rows)
    return (
        columns,
        summarise(columns, RunConditions(workload, SCALE, 0, planned_cached_ratio=planned)),
        plan.request_plan,
    )


def test_each_answer_is_as_long_as_its_own_length(simulated: Running) -> None:
    workload = Workload(
        "w",
        concurrency=4,
        requests=24,
        prompts="builtin:chat",
        output=Lengths("uniform", 3, 40),
        api="chat",
    )
    columns, summary, asks = measured(simulated, workload)
    lengths = [asks.output_length(number) for number in range(24)]
    assert [request.response.completion_tokens for request in columns.requests()] == lengths
    assert (summary.requests_ok, summary.facts["off_length"], len(set(lengths)) > 5) == (
        24,
        0,
        True,
    )


def test_requests_of_a_ramp_are_sent_when_they_are_due(simulated: Running) -> None:
    stages = (Stage(0, 2, 40), Stage(2, 2, 20))
    workload = Workload(
        "w",
        stages=stages,
        arrivals="constant",
        duration_s=60,
        prompts="builtin:chat",
        output_tokens=5,
        api="chat",
    )
    columns, summary, _ = measured(simulated, workload)
    due_s = [
        (request.intended_ns - columns.requests()[0].intended_ns) / 1e9 * SCALE
        for request in columns.requests()
    ]
    assert len(due_s) == 80
    assert sum(at < 40 for at in due_s) == 40
    assert sum(at < 20 for at in due_s) == 10
    assert summary.requests_ok == 80


TRACE = Trace(
    (0, 4000, 12_000, 20_000), (900, 1500, 40, 700), (7, 8, 9, 10), ((1,), (1, 2), (), (3, 4))
)


def test_a_trace_is_replayed_at_its_times_with_its_lengths(simulated: Running) -> None:
    workload = Workload("w", trace="x", speed=2.0, requests=3, duration_s=6, api="chat")
    columns, summary, _ = measured(simulated, workload, x=pack(TRACE))
    requests = columns.requests()
    due_s = [(request.intended_ns - requests[0].intended_ns) / 1e9 * SCALE for request in requests]
    assert due_s == pytest.approx([0, 2, 6], abs=0.001)
    assert [request.response.completion_tokens for request in requests] == [7, 8, 9]
    words = [
        request.response.prompt_tokens or 0 for request in requests
    ]  # the simulated server's tokens are words
    assert [count / WORDS_PER_TOKEN for count in words] == [
        pytest.approx(tokens, abs=15) for tokens in (900, 1500, 40)
    ]
    assert (summary.requests_ok, summary.facts["off_length"]) == (3, 0)


def test_a_trace_of_ids_has_its_lengths_exactly(simulated: Running) -> None:
    workload = Workload("w", trace="x", speed=4.0, prompts="random:ids", api="generate")
    columns, _, _ = measured(simulated, workload, x=pack(TRACE))
    assert [request.response.prompt_tokens for request in columns.requests()] == list(
        TRACE.prompt_tokens
    )


def test_prompts_of_a_file_are_sent_with_all_their_messages(simulated: Running) -> None:
    conversations = ((("system", "s " * 50), ("user", "one two three")),)
    workload = Workload(
        "w", concurrency=1, requests=2, prompts="file:x", output_tokens=5, api="chat"
    )
    columns, summary, _ = measured(simulated, workload, x=pack(Prompts(conversations)))
    assert all((request.response.prompt_tokens or 0) >= 54 for request in columns.requests())
    assert summary.requests_ok == 2


def test_random_prompts_have_their_lengths_exactly(simulated: Running) -> None:
    lengths = Lengths("uniform", 10, 90)
    workload = Workload(
        "w",
        concurrency=2,
        requests=8,
        prompts="random:ids",
        input=lengths,
        output_tokens=5,
        api="generate",
    )
    columns, _, asks = measured(simulated, workload)
    assert [request.response.prompt_tokens for request in columns.requests()] == [
        len(asks.planned_request(number).prompt) for number in range(8)
    ]


def test_a_run_whose_file_did_not_come_is_refused(simulated: Running) -> None:
    with pytest.raises(ValueError, match="the trial lacks the file of its trace x"):
        measured(simulated, Workload("w", trace="x", api="chat"))


GROUPS = Workload(
    "w",
    concurrency=1,
    requests=12,
    prompts="builtin:chat",
    output_tokens=5,
    api="chat",
    prefix=SharedPrefix(2, 500),
)


def test_what_groups_share_is_found_in_the_cache_and_no_more(simulated: Running) -> None:
    _, summary, asks = measured(simulated, replace(GROUPS, cache="flush"), run_index=1)
    found, planned = summary.facts["cached_token_ratio"], summary.facts["planned_cached_ratio"]
    assert planned == asks.planned_cached_share(12)
    assert planned > 0.6
    assert found == pytest.approx(planned, abs=0.05)


def test_the_control_of_groups_finds_nothing(simulated: Running) -> None:
    _, summary, _ = measured(simulated, replace(GROUPS, cache="salt"), run_index=2)
    assert summary.facts["cached_token_ratio"] == pytest.approx(0, abs=0.001)
    assert summary.facts["planned_cached_ratio"] is None


def test_a_shared_cache_keeps_what_earlier_runs_sent(simulated: Running) -> None:
    warm = Workload(
        "w",
        concurrency=1,
        requests=6,
        prompts="builtin:code",
        output_tokens=5,
        api="chat",
        cache="shared",
    )
    first, second = (
        measured(simulated, warm, run_index)[1].facts["cached_token_ratio"] for run_index in (3, 4)
    )
    assert second > max(0.7, first + 0.3)


def test_each_kind_of_a_mixture_is_answered_at_its_own_length(simulated: Running) -> None:
    mix = (Part(2, "builtin:chat", 4), Part(1, "builtin:code", output=Lengths("uniform", 10, 20)))
    columns, summary, asks = measured(
        simulated, Workload("w", concurrency=4, requests=40, mix=mix, api="chat")
    )
    lengths = [request.response.completion_tokens for request in columns.requests()]
    assert lengths == [asks.output_length(number) for number in range(40)]
    assert 15 < sum(length == 4 for length in lengths) < 38
    assert summary.facts["off_length"] == 0


CHATS = Workload(
    "w",
    concurrency=2,
    requests=12,
    prompts="builtin:chat",
    output_tokens=20,
    api="chat",
    cache="flush",
    turns=3,
    think_s=4,
)


def test_turns_of_a_session_follow_one_another_with_think_times_and_all_that_was_said(
    simulated: Running,
) -> None:
    columns, summary, asks = measured(simulated, CHATS, run_index=5)
    requests = columns.requests()
    assert [request.number for request in requests] == list(range(12))
    assert summary.requests_ok == 12
    for number in (number for number in range(12) if number % 3):
        thought_s = (requests[number].intended_ns - requests[number - 1].end_ns) / 1e9 * SCALE
        assert thought_s == pytest.approx(asks.think_s(number, 4), abs=0.002 * SCALE)
        grown = (requests[number].response.prompt_tokens or 0) - (
            requests[number - 1].response.prompt_tokens or 0
        )
        assert grown > 20  # the answer, and what was asked next


def test_a_turn_finds_its_session_in_the_cache_and_no_other(simulated: Running) -> None:
    requests = measured(simulated, replace(CHATS, concurrency=1, think_s=0.0), run_index=6)[
        0
    ].requests()
    cached, prompts = (
        [getattr(request.response, name) or 0 for request in requests]
        for name in ("cached_tokens", "prompt_tokens")
    )
    assert max(cached[::3]) <= 8  # the template, and words that any two prompts may begin with
    assert all(
        cached[number] >= prompts[number - 1] - 4 for number in range(12) if number % 3
    )  # all that the turn before had sent


def test_sessions_are_dealt_out_whole_and_each_once() -> None:
    request = LoadRequest("http://h", CHATS)
    plans = plan_shards(request, LoadTarget("http://h"), warm=False, shard_count=lambda users: 2)
    assert [list(plan.numbers) for plan in plans] == [[0, 6], [3, 9]]
    assert sum(plan.concurrency for plan in plans) == 2
