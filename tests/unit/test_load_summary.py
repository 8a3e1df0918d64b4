"""Promises of the metrics: computed by hand here, over requests made up here."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from fleet_agent.core.run_facts import RunFacts
from fleet_agent.load.client.request_record import RequestRecord, Response
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.results.request_columns import Columns
from fleet_agent.load.results.run_summary import RunConditions
from fleet_agent.load.results.run_summary import summarise as summarise_columns
from fleet_protos.trial_types import Slo, Workload

S = 1_000_000_000
BEGAN = 77 * S
ONE = RunConditions(Workload("w", concurrency=1, output_tokens=11))
ARRIVING = RunConditions(Workload("w", rate_per_s=1.0, output_tokens=11))


def made(
    number: int = 0,
    *,
    intended: float = 0,
    sent: float = 0,
    chunks: tuple[float, ...] = (1, 2, 3),
    tokens: int = 11,
) -> RequestRecord:
    """A request of 11 tokens in three chunks that ends with its last chunk; times in seconds after
    an arbitrary moment.
    """
    times = array("q", (BEGAN + round(at * S) for at in chunks))
    response = Response(
        200,
        times,
        last_ns=max(times, default=0),
        prompt_tokens=100,
        completion_tokens=tokens,
        finish_reason="length",
    )
    return RequestRecord(
        number,
        BEGAN + round(intended * S),
        BEGAN + round(max(sent, intended) * S),
        "0" * 16,
        response,
    )


def summarise(requests: list[RequestRecord], conditions: RunConditions) -> LoadReply:
    return summarise_columns(Columns.from_requests(requests), conditions)


def changed(request: RequestRecord, **fields: Any) -> RequestRecord:
    return replace(request, response=replace(request.response, **fields))


@pytest.mark.parametrize(("conditions", "late_s"), [(ARRIVING, 0.0), (ONE, 0.5)])
def test_latency_counts_from_the_arrival_at_an_open_loop_and_from_the_send_at_a_closed_one(
    conditions: RunConditions, late_s: float
) -> None:
    summary = summarise([made(intended=0, sent=0.5)], conditions)
    assert (summary.metrics["ttft_s_p50"], summary.metrics["e2e_s_p50"]) == (1 - late_s, 3 - late_s)
    assert summary.metrics["dispatch_delay_s_p99"] == summary.facts["dispatch_delay_p99_s"] == 0.5


def test_time_per_token_divides_by_the_servers_tokens_and_not_by_chunks() -> None:
    assert summarise([made()], ONE).metrics["tpot_s_mean"] == pytest.approx((3 - 1) / (11 - 1))
    assert summarise([made()], ONE).metrics["icl_s_p50"] == 1


def test_throughput_spans_from_the_first_intended_send_to_the_last_byte() -> None:
    summary = summarise([made(0), made(1, intended=2, chunks=(3, 4, 7))], ONE)
    assert summary.metrics["output_tok_s"] == pytest.approx(22 / 7)
    assert summary.metrics["tok_s_per_user"] == pytest.approx((11 / 3 + 11 / 5) / 2)
    assert summary.metrics["achieved_concurrency"] == pytest.approx((3 + 5) / 7)
    assert (summary.duration_s, summary.output_tokens) == (7, 22)


def test_model_time_is_wall_time_times_the_scale_in_metrics_and_the_facts_stay_wall() -> None:
    requests = [made(0, sent=0.1), made(1, intended=2, chunks=(3, 4, 7))]
    wall = summarise(requests, replace(ONE, lags_ns=(4_000_000,)))
    model = summarise(requests, replace(ONE, time_scale=10, lags_ns=(4_000_000,)))
    assert model.facts == wall.facts
    assert model.duration_s == 10 * wall.duration_s
    for name, value in wall.metrics.items():
        factor = 0.1 if "tok_s" in name else 10 if "_s_" in name else 1
        assert model.metrics[name] == pytest.approx(value * factor), name


def test_facts_are_exactly_the_fields_that_gates_read() -> None:
    RunFacts(**summarise([made()], ONE).facts)
    RunFacts(**summarise([], ONE).facts)


def test_a_failed_request_never_becomes_a_number() -> None:
    failed = changed(made(1, chunks=(0.001, 0.002)), error_kind="truncated", error_detail="cut")
    summary = summarise([made(), failed], ONE)
    assert summary.metrics["ttft_s_p50"] == 1
    assert (summary.requests_ok, summary.requests_failed, summary.output_tokens) == (1, 1, 11)
    assert (summary.facts["error_kinds"], summary.error_examples) == (
        {"truncated": 1},
        {"truncated": "cut"},
    )


def test_a_run_without_a_success_has_no_metrics() -> None:
    failed = changed(made(), error_kind="connect", completion_tokens=None)
    assert summarise([failed], ONE).metrics == {}
    assert summarise([], ONE).metrics == {}


def test_an_answer_without_tokens_is_told() -> None:
    assert summarise([made(), made(1, chunks=(), tokens=0)], ONE).facts["zero_token_requests"] == 1


def test_accept_length_is_tokens_by_steps_and_absent_without_speculation() -> None:
    first, second = changed(made(0), verify_ct=4), changed(made(1), verify_ct=6)
    assert summarise([first, second], ONE).metrics["accept_length"] == pytest.approx(22 / 10)
    assert "accept_length" not in summarise([made()], ONE).metrics
    assert summarise([made()], ONE).facts["accept_length"] is None


def test_cached_tokens_of_the_chat_template_are_planned_and_the_rest_is_told() -> None:
    conditions = replace(ONE, template_tokens=30)
    assert (
        summarise([changed(made(), cached_tokens=30)], conditions).facts["cached_token_ratio"] == 0
    )
    assert summarise([changed(made(), cached_tokens=84)], conditions).facts[
        "cached_token_ratio"
    ] == pytest.approx(0.5)
    assert summarise([made()], conditions).facts["cached_token_ratio"] == 0, (
        "a server that tells them leaves a 0 out"
    )
    assert (
        summarise([made()], replace(ONE, template_tokens=None)).facts["cached_token_ratio"] is None
    )


def test_own_count_is_compared_where_it_is_exact_and_bounds_where_it_is_not() -> None:
    def mismatch(**fields: object) -> object:
        return summarise([changed(made(), **fields)], ONE).facts["client_count_mismatch"]

    assert mismatch(own_tokens=11, own_is_exact=True) == 0
    assert mismatch(own_tokens=22, own_is_exact=True) == 1
    assert mismatch(own_tokens=3) is None
    assert mismatch(own_tokens=22) == 1


def test_steady_concurrency_leaves_out_the_end_when_slots_run_out_of_work() -> None:
    conditions = RunConditions(Workload("w", concurrency=2, output_tokens=11))
    requests = [
        made(0, chunks=(4,)),
        made(1, chunks=(5,)),
        made(2, intended=4, chunks=(9,)),
        made(3, intended=5, chunks=(20,)),
    ]
    assert summarise(requests, conditions).facts["achieved_concurrency"] == 2


def test_a_slot_that_runs_out_of_work_before_the_last_send_ends_the_steady_part() -> None:
    """Answers of one wave end together: the second slot finds no work 0.1 s after the last request
    was due, which is sent 0.1 s later still.
    """
    conditions = RunConditions(Workload("w", concurrency=2, output_tokens=11))
    requests = [
        made(0, chunks=(1, 10.0)),
        made(1, chunks=(1, 10.1)),
        made(2, intended=10.0, sent=10.2, chunks=(11, 20)),
    ]
    concurrency = summarise(requests, conditions).facts["achieved_concurrency"]
    assert concurrency == pytest.approx(2, rel=0.01)


def test_steady_concurrency_leaves_out_the_beginning_when_slots_start_one_after_the_other() -> None:
    conditions = RunConditions(Workload("w", concurrency=250, output_tokens=11))
    requests = [
        made(slot, intended=slot * 0.0002, chunks=(0.5, 1 + slot * 0.0002)) for slot in range(250)
    ]
    assert summarise(requests, conditions).facts["achieved_concurrency"] == 250


def test_silence_after_the_last_output_is_not_time_per_token_but_flagged() -> None:
    silent = changed(made(), last_ns=BEGAN + 5 * S)
    summary = summarise([silent, made(1)], ONE)
    assert summary.metrics["tpot_s_mean"] == pytest.approx((3 - 1) / (11 - 1))
    assert summary.metrics["e2e_s_p99"] > 4.9
    assert summary.facts["silent_tail_share"] == pytest.approx(2 / 8)
    assert summary.facts["silent_tail_p99_s"] == pytest.approx(1.98)
    assert summarise([made()], ONE).facts["silent_tail_share"] == 0


def test_the_clients_own_cost_is_wall_time_by_the_servers_tokens() -> None:
    conditions = replace(ONE, time_scale=10, cpu_s=0.001, decode_s=0.002)
    summary = summarise([made(0), made(1)], conditions)
    assert summary.metrics["client_cpu_us_per_token"] == pytest.approx(1000 / 22)
    assert (summary.facts["client_cpu_s"], summary.facts["client_decode_s"]) == (0.001, 0.002)
    assert "client_cpu_us_per_token" not in summarise([made()], ONE).metrics


def test_goodput_is_the_share_that_met_every_limit() -> None:
    conditions = RunConditions(
        Workload("w", concurrency=1, slo=Slo(ttft_p99_s=1.5, tpot_p99_s=0.25))
    )
    requests = [made(0), made(1, chunks=(2, 3)), made(2, chunks=(1, 9))]
    assert summarise(requests, conditions).metrics["goodput_ratio"] == pytest.approx(1 / 3)
    assert "goodput_ratio" not in summarise(requests, ONE).metrics


def waiting(queue_s: float, count: int = 40) -> list[RequestRecord]:
    """One request a second, each of which ends 2 s after its intended send and `queue_s` later than
    the one before it.
    """
    return [
        made(at, intended=at, chunks=(at + 1 + at * queue_s, at + 2 + at * queue_s))
        for at in range(count)
    ]


def test_a_queue_that_grows_leaves_requests_unanswered_in_the_second_half_of_the_arrivals() -> None:
    at_a_rate = RunConditions(Workload("w", rate_per_s=1, duration_s=61, output_tokens=11))
    assert summarise(waiting(0, 61), at_a_rate).facts["answered_share"] == 1
    assert summarise(waiting(1, 61), at_a_rate).facts["answered_share"] == pytest.approx(
        15 / 30
    )  # one ends every 2 s
    assert summarise(waiting(1, 39), at_a_rate).facts["answered_share"] is None
    assert summarise(waiting(1, 61), ONE).facts["answered_share"] is None
