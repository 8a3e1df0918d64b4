"""Promises of the metrics over columns: each is the number that its definition gives when it is
worked out request by request.
"""

from __future__ import annotations

import statistics
from array import array
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.load.client.request_record import ErrorName, RequestRecord, Response
from fleet_agent.load.results.percentiles import percentile
from fleet_agent.load.results.request_columns import Columns, ColumnsBuilder
from fleet_agent.load.results.run_summary import SALT_TOKENS, RunConditions, summarise
from fleet_protos.trial_types import Slo, Workload
from fleet_protos.workload_rules import is_open_loop

S = 1_000_000_000
SLO = Slo(ttft_p99_s=2.0, tpot_p99_s=0.5)
CLOSED = RunConditions(
    Workload("w", concurrency=4, output_tokens=9, slo=SLO), 2.0, 10, cpu_s=0.5, decode_s=0.1
)
OPEN = replace(
    CLOSED, workload=Workload("w", rate_per_s=9, duration_s=9, slo=SLO), template_tokens=None
)
TOLD = st.none() | st.integers(0, 50)


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    intended_ns = draw(st.integers(1, 20 * S))
    sent_ns = draw(st.just(0) | st.integers(intended_ns, intended_ns + S))
    gaps = draw(st.lists(st.just(0) | st.integers(1, 3 * S), max_size=6))
    times = array(
        "q", (max(sent_ns, intended_ns) + sum(gaps[: count + 1]) for count in range(len(gaps)))
    )
    kind = draw(st.sampled_from(["", "", "", ErrorName.RESET, ErrorName.STALLED]))
    response = Response(
        200, times, None, times[-1] + draw(st.integers(0, S)) if times else 0, draw(TOLD),
        draw(TOLD if kind else st.integers(0, 50)), draw(TOLD), draw(st.none() | st.integers(1, 9)), draw(st.integers(0, 60)),
        draw(st.booleans()), draw(st.sampled_from(["length", "stop", ""])), error_kind=kind,
    )  # fmt: skip
    return RequestRecord(0, intended_ns, sent_ns, "0" * 16, response)


RUNS = st.lists(requests(), min_size=1, max_size=30).map(
    lambda made: [replace(one, number=number) for number, one in enumerate(made)]
)


def tokens(request: RequestRecord) -> int:
    return request.response.completion_tokens or 0


def first_ns(request: RequestRecord) -> int:
    return request.response.first_output_ns


def begun_ns(request: RequestRecord, conditions: RunConditions) -> int:
    return (
        request.intended_ns
        if is_open_loop(conditions.workload)
        else max(request.sent_ns, request.intended_ns)
    )


def tpot_ns(request: RequestRecord) -> float:
    return (request.response.chunk_ns[-1] - first_ns(request)) / (tokens(request) - 1)


def worked_out(run: list[RequestRecord], conditions: RunConditions) -> dict[str, float]:
    """Metrics by docs/metrics.md, with what is not about latencies left to the tests beside this
    one.
    """
    good = [request for request in run if request.ok]
    wall_ns = max(request.end_ns for request in run) - min(request.intended_ns for request in run)
    if not sum(map(tokens, good)) or not wall_ns:
        return {}
    samples = {
        "ttft_s": [
            first_ns(request) - begun_ns(request, conditions)
            for request in good
            if first_ns(request)
        ],
        "tpot_s": [
            tpot_ns(request) for request in good if tokens(request) > 1 and first_ns(request)
        ],
        "icl_s": [
            later - earlier
            for request in good
            for earlier, later in pairwise(request.response.chunk_ns)
        ],
        "e2e_s": [request.end_ns - begun_ns(request, conditions) for request in good],
    }
    to_s = conditions.time_scale / S
    found = {
        f"{name}_p{share}": percentile(ns, share / 100) * to_s
        for name, ns in samples.items()
        for share in (50, 99)
        if ns
    }
    if samples["tpot_s"]:
        found["tpot_s_mean"] = statistics.fmean(samples["tpot_s"]) * to_s
    took = [(tokens(request), request.end_ns - begun_ns(request, conditions)) for request in good]
    rates = [count / ns for count, ns in took if ns > 0]
    if rates:
        found["tok_s_per_user"] = statistics.fmean(rates) / to_s
    delays = [request.sent_ns - request.intended_ns for request in good if request.sent_ns]
    return found | {
        "output_tok_s": sum(map(tokens, good)) / (wall_ns * to_s),
        "achieved_concurrency": sum(samples["e2e_s"]) / wall_ns,
        "dispatch_delay_s_p99": percentile(delays, 0.99) * to_s,
        "goodput_ratio": sum(met(request, conditions) for request in good) / len(good),
        "client_cpu_us_per_token": conditions.cpu_s * 1e6 / sum(map(tokens, good)),
    } | speculation(good) | cache(good, conditions)  # fmt: skip


def met(request: RequestRecord, conditions: RunConditions) -> bool:
    to_s = conditions.time_scale / S
    in_time = (
        first_ns(request) > 0
        and (first_ns(request) - begun_ns(request, conditions)) * to_s <= SLO.ttft_p99_s
    )
    return in_time and (tokens(request) <= 1 or tpot_ns(request) * to_s <= SLO.tpot_p99_s)


def speculation(good: list[RequestRecord]) -> dict[str, float]:
    told = [request for request in good if request.response.verify_ct]
    steps = sum(request.response.verify_ct or 0 for request in told)
    return {"verify_steps": steps, "accept_length": sum(map(tokens, told)) / steps} if steps else {}


def cache(good: list[RequestRecord], conditions: RunConditions) -> dict[str, float]:
    told = [
        one.response
        for one in good
        if conditions.template_tokens is not None or one.response.cached_tokens is not None
    ]
    prompt_tokens = sum(response.prompt_tokens or 0 for response in told)
    planned = (conditions.template_tokens or 0) + SALT_TOKENS
    unplanned = sum(max(0, (response.cached_tokens or 0) - planned) for response in told)
    return {"cached_token_ratio": unplanned / prompt_tokens} if prompt_tokens else {}


@pytest.mark.parametrize("conditions", [CLOSED, OPEN])
@settings(max_examples=40, deadline=None)
@given(run=RUNS)
def test_metrics_over_columns_are_those_worked_out_request_by_request(
    conditions: RunConditions, run: list[RequestRecord]
) -> None:
    assert summarise(Columns.from_requests(run), conditions).metrics == pytest.approx(
        worked_out(run, conditions)
    )


@settings(max_examples=40, deadline=None)
@given(RUNS)
def test_facts_over_columns_are_those_worked_out_request_by_request(
    run: list[RequestRecord],
) -> None:
    facts, good = (
        summarise(Columns.from_requests(run), CLOSED).facts,
        [request for request in run if request.ok],
    )
    counts = [tokens(request) for request in good]
    known = [request.sent_ns - request.intended_ns for request in run if request.sent_ns]
    assert {name: facts[name] for name in WORKED_OUT} == pytest.approx({
        "requests_ok": len(good), "requests_failed": len(run) - len(good),
        "completion_tokens_min": min(counts, default=0), "completion_tokens_max": max(counts, default=0),
        "zero_token_requests": sum(not tokens(request) or not first_ns(request) for request in good),
        "dispatch_delay_p99_s": percentile(known, 0.99) / S, "client_cpu_s": 0.5, "client_decode_s": 0.1,
    })  # fmt: skip
    assert facts["error_kinds"] == Counter(
        request.response.error_kind for request in run if not request.ok
    )
    assert facts["finish_reasons"] == Counter(request.response.finish_reason for request in good)


WORKED_OUT = (
    "requests_ok", "requests_failed", "completion_tokens_min", "completion_tokens_max", "zero_token_requests", "dispatch_delay_p99_s",
    "client_cpu_s", "client_decode_s",
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(run=RUNS)
def test_a_run_of_which_the_chunks_are_on_disk_or_packed_has_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, run: list[RequestRecord]
) -> None:
    path: Path = tmp_path_factory.mktemp("run") / "chunks"
    for place in (str(path), ""):
        builder = ColumnsBuilder(place, held_chunks=0, piece_chunks=4)
        for request in run:
            builder.add(request)
        assert summarise(builder.build(), CLOSED) == summarise(Columns.from_requests(run), CLOSED)
