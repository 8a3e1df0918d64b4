"""Owns the promises of the gates of a run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.core.gates import GATES, run_gates
from fleet_agent.core.run_facts import RunFacts
from fleet_protos.trial_types import (
    Gate,
    GateEffect,
    Lengths,
    Measure,
    RunResult,
    Stage,
    Workload,
    is_void,
)

CLOSED = Workload(name="busy", concurrency=8, requests=32, output_tokens=500)
OPEN = Workload(name="open", rate_per_s=4.0, duration_s=60.0, output_tokens=500)
GOOD = RunFacts(
    requests_ok=32, requests_failed=0, error_kinds={}, finish_reasons={"length": 32}, completion_tokens_min=500, completion_tokens_max=500,
    zero_token_requests=0, client_count_mismatch=0.0, cached_token_ratio=0.0, achieved_concurrency=7.9, dispatch_delay_p99_s=0.001,
    loop_lag_p99_s=0.001, speculation=True, accept_length=2.5, answered_share=None,
    output_tokens=16000, prompt_tokens=3200, counted_output_tokens=16000.0, counted_prompt_tokens=3200.0, counted_requests=32.0,
)  # fmt: skip
NONE_OK = {
    "requests_ok": 0,
    "finish_reasons": {},
    "completion_tokens_min": 0,
    "completion_tokens_max": 0,
}


def gates(
    workload: Workload = CLOSED, measure: Measure | None = None, **changes: Any
) -> tuple[Gate, ...]:
    return run_gates(replace(GOOD, **changes), workload, measure or Measure())


@pytest.mark.parametrize(
    ("counted", "effect"),
    [
        ({"counted_output_tokens": 16200.0, "counted_requests": 33.0}, GateEffect.VOID_RUN),
        ({"counted_prompt_tokens": 3300.0, "counted_requests": 33.0}, GateEffect.VOID_RUN),
        ({"counted_output_tokens": float("nan")}, GateEffect.VOID_RUN),
        ({"counted_output_tokens": 16100.0, "counted_requests": 33.0}, GateEffect.FLAG),
        ({"counted_output_tokens": 16000.0}, None),
        ({"counted_output_tokens": 15000.0}, None),
        ({"counted_output_tokens": 20000.0, "requests_failed": 1}, None),
        ({"counted_prompt_tokens": 9000.0, "prompt_tokens": None}, None),
        ({"counted_prompt_tokens": None, "counted_requests": None}, None),
    ],
)
def test_a_run_in_whose_window_the_server_worked_for_others_too_is_void(
    counted: dict[str, Any], effect: GateEffect | None
) -> None:
    found = [gate.effect for gate in gates(**counted) if gate.code == "foreign_requests"]
    assert found == ([effect] if effect is not None else [])


def test_the_tokens_of_other_clients_are_named_with_those_of_the_run() -> None:
    (gate,) = gates(
        counted_output_tokens=28000.0, counted_prompt_tokens=4000.0, counted_requests=80.0
    )
    assert gate.message == (
        "other clients used the server during the run: it counted 28000 output tokens, 16000 are "
        "of this run; 4000 prompt tokens, 3200 of it; 80 requests, 32 of it"
    )


def test_the_servers_own_words_about_failed_requests_are_in_the_message_with_a_hint() -> None:
    found = gates(
        requests_failed=4,
        error_kinds={"reset": 1, "http_status": 3},
        error_examples={
            "http_status 429": '{"error":\n "tier 0"}',
            "http_status 503": "",
            "reset": "Connection reset by peer",
        },
    )
    assert found[0].message == (
        "4 of 36 requests failed: 3 × http_status, 1 × reset; first of each: http_status 429: "
        '{"error": "tier 0"} (the server limits the rate of requests: lower the load, or lift the '
        "limit); http_status 503 (the server is overloaded or broken: lower the load, or read its "
        "log); reset: Connection reset by peer (read the server's log: it closed the connection)"
    )


def test_a_server_without_counters_is_flagged_because_others_would_not_be_noticed() -> None:
    (gate,) = gates(counted_output_tokens=None)
    assert (gate.code, gate.effect) == ("foreign_requests_unknown", GateEffect.FLAG)


@pytest.mark.parametrize(
    ("share", "p99_s", "is_told"),
    [(0.95, 2.0, True), (0.03, 0.03, True), (0.01, 2.0, False), (0.5, 0.01, False)],
)
def test_answers_that_go_on_after_their_last_output_are_flagged(
    share: float, p99_s: float, is_told: bool
) -> None:
    found = gates(silent_tail_share=share, silent_tail_p99_s=p99_s)
    assert [(gate.code, gate.effect) for gate in found] == (
        [("silent_tail", GateEffect.FLAG)] if is_told else []
    )


@pytest.mark.parametrize("workload", [CLOSED, OPEN], ids=["closed", "open"])
def test_a_good_run_trips_nothing(workload: Workload) -> None:
    assert gates(workload) == ()


def test_a_rate_that_the_server_cannot_keep_up_with_is_told() -> None:
    (gate,) = gates(OPEN, answered_share=0.5)
    assert (gate.code, gate.effect) == ("rate_not_sustained", GateEffect.FLAG)
    assert gate.message.startswith(
        "50.0 % as many answers as requests in the second half of the arrivals: the server does not keep up"
    )
    assert gates(OPEN, answered_share=0.8) == ()
    assert gates(CLOSED, answered_share=0.1) == ()


def test_requests_that_failed_are_not_blamed_on_the_client() -> None:
    refused = gates(
        **NONE_OK, requests_failed=8, error_kinds={"connect": 8}, achieved_concurrency=0.0
    )
    assert [gate.code for gate in refused] == ["requests_failed"]
    assert [gate.code for gate in gates(requests_failed=1, achieved_concurrency=4.0)] == [
        "requests_failed"
    ]


TRIPS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"requests_failed": 3, "error_kinds": {"http_503": 2, "timeout": 1}}, "requests_failed",
        "3 of 35 requests failed: 2 × http_503, 1 × timeout",
    ),
    ({"requests_failed": 1}, "requests_failed", "1 of 33 requests failed"),
    (NONE_OK, "requests_failed", "no request was answered"),
    ({"zero_token_requests": 2}, "zero_tokens", "2 of 32 answers had no token"),
    (
        {"finish_reasons": {"length": 31, "stop": 1}}, "short_output",
        "500 tokens requested, 500 to 500 received; finish reasons other than length: 1 × stop",
    ),
    ({"completion_tokens_min": 250}, "short_output", "500 tokens requested, 250 to 500 received"),
    ({"completion_tokens_max": 501}, "short_output", "500 tokens requested, 500 to 501 received"),
    ({"client_count_mismatch": 0.021}, "token_count_mismatch", "the token counts of client and server differ by 2.1 %"),
    ({"cached_token_ratio": 0.5}, "prefix_cache_hit", "50.0 % of the prompt tokens came from the prefix cache, which the workload does not plan"),
    ({"achieved_concurrency": 7.5}, "client_limited", "the client was the limit: 7.50 requests in flight, 8 requested"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    TRIPS,
    ids=[f"{code}-{index}" for index, (_, code, _) in enumerate(TRIPS)],
)
def test_a_run_that_shows_a_known_fault_is_void(
    changes: dict[str, Any], code: str, message: str
) -> None:
    assert [replace(gate, reasons=()) for gate in gates(**changes)] == [
        Gate(code, GateEffect.VOID_RUN, message)
    ]
    assert is_void(RunResult(gates=gates(**changes)))


def test_speculation_without_effect_voids_the_trial_not_only_the_run() -> None:
    told = "accept length 1.040: speculation was requested but has no effect"
    assert gates(accept_length=1.04) == (Gate("spec_ineffective", GateEffect.VOID_TRIAL, told),)
    assert is_void(RunResult(gates=gates(accept_length=1.04)))


@pytest.mark.parametrize(
    "changes",
    [
        {"client_count_mismatch": 0.02}, {"cached_token_ratio": 0.01}, {"accept_length": 1.05}, {"achieved_concurrency": 7.6},
        {"loop_lag_p99_s": 0.005}, {"speculation": False, "accept_length": 1.0}, {"speculation": False, "accept_length": None},
    ],
)  # fmt: skip
def test_a_run_at_the_limit_counts(changes: dict[str, Any]) -> None:
    assert gates(**changes) == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"client_count_mismatch": None}, "token_count_unchecked"), ({"cached_token_ratio": None}, "prefix_cache_unknown"),
        ({"accept_length": None}, "spec_unproved"), ({"loop_lag_p99_s": 0.02}, "client_limited"),
    ],
)  # fmt: skip
def test_what_could_not_be_checked_is_flagged_and_counts(
    changes: dict[str, Any], code: str
) -> None:
    found = gates(**changes)
    assert [(gate.code, gate.effect) for gate in found] == [(code, GateEffect.FLAG)]
    assert not is_void(RunResult(gates=found))


@pytest.mark.parametrize(
    ("delay_s", "effect"), [(0.011, GateEffect.FLAG), (0.051, GateEffect.VOID_RUN)]
)
def test_late_sends_of_an_open_loop_are_flagged_and_very_late_ones_void(
    delay_s: float, effect: GateEffect
) -> None:
    assert [gate.effect for gate in gates(OPEN, dispatch_delay_p99_s=delay_s)] == [effect]
    assert gates(CLOSED, dispatch_delay_p99_s=delay_s) == ()


def test_a_client_that_is_the_limit_in_two_ways_trips_one_gate_with_both_reasons() -> None:
    (gate,) = gates(achieved_concurrency=4.0, loop_lag_p99_s=0.25)
    assert gate.effect is GateEffect.VOID_RUN
    assert (
        gate.message
        == "the client was the limit: 4.00 requests in flight, 8 requested; the client's event loop woke up 250.0 ms late (p99)"
    )


LIMITS: list[tuple[Workload, dict[str, Any], str, GateEffect]] = [
    (CLOSED, {"achieved_concurrency": 7.59}, "concurrency", GateEffect.VOID_RUN),
    (OPEN, {"dispatch_delay_p99_s": 0.0101}, "dispatch_delay", GateEffect.FLAG),
    (OPEN, {"dispatch_delay_p99_s": 0.0501}, "dispatch_delay", GateEffect.VOID_RUN),
    (CLOSED, {"loop_lag_p99_s": 0.0051}, "loop_lag", GateEffect.FLAG),
    (CLOSED, {"client_use": 0.701, "client_capacity_tok_s": 90_000.0}, "capacity", GateEffect.FLAG),
    (OPEN, {"client_use": math.nan}, "capacity", GateEffect.FLAG),
]


@pytest.mark.parametrize(("workload", "changes", "reason", "effect"), LIMITS)
def test_each_way_in_which_the_client_is_the_limit_has_its_code(
    workload: Workload, changes: dict[str, Any], reason: str, effect: GateEffect
) -> None:
    (gate,) = gates(workload, **changes)
    assert (gate.code, gate.reasons, gate.effect) == ("client_limited", (reason,), effect)


def test_all_ways_at_once_are_all_told() -> None:
    (gate,) = gates(
        achieved_concurrency=4.0,
        loop_lag_p99_s=0.25,
        client_use=0.9,
        client_capacity_tok_s=95_400.0,
    )
    assert (gate.effect, gate.reasons) == (
        GateEffect.VOID_RUN,
        ("concurrency", "loop_lag", "capacity"),
    )
    assert gate.message.endswith(
        "; the run took 90.0 % of the 95400 tok/s that the client can drive against a null server"
    )
    (gate,) = gates(client_use=0.9)
    assert (
        gate.message
        == "the client was the limit: the run took 90.0 % of the cores that the client can use"
    )


@pytest.mark.parametrize("use", [None, 0.0, 0.70])
def test_a_client_with_room_left_or_of_which_nothing_is_known_is_no_limit(
    use: float | None,
) -> None:
    assert gates(client_use=use) == ()


def test_each_reason_of_the_client_gate_is_documented() -> None:
    documented = set(
        re.findall(r"`([a-z_]+)`", (Path(__file__).parents[2] / "docs/gates.md").read_text())
    )
    assert {reason for _, _, reason, _ in LIMITS} <= documented


def test_fewer_requests_than_concurrency_are_not_the_clients_fault() -> None:
    assert gates(replace(CLOSED, requests=4), achieved_concurrency=3.9) == ()


def test_a_coarser_precision_tolerates_as_much_missing_load() -> None:
    assert gates(measure=Measure(precision=0.10), achieved_concurrency=7.3) == ()


def test_a_workload_without_a_fixed_length_is_not_held_to_one() -> None:
    assert (
        gates(
            replace(CLOSED, output_tokens=0), finish_reasons={"stop": 32}, completion_tokens_min=3
        )
        == ()
    )


@pytest.mark.parametrize(
    "fact", ["client_count_mismatch", "cached_token_ratio", "accept_length", "achieved_concurrency"]
)
def test_a_fact_that_is_not_a_number_voids_the_run(fact: str) -> None:
    changes: dict[str, Any] = {fact: float("nan")}
    assert [gate.effect >= GateEffect.VOID_RUN for gate in gates(**changes)] == [True]


def test_the_worst_gate_comes_first() -> None:
    found = gates(cached_token_ratio=None, requests_failed=1, loop_lag_p99_s=0.02)
    assert [gate.effect for gate in found] == sorted((gate.effect for gate in found), reverse=True)
    assert found[0].code == "requests_failed"


def test_facts_come_whole_through_json() -> None:
    assert RunFacts(**json.loads(json.dumps(asdict(GOOD)))) == GOOD


def test_a_fact_that_is_missing_is_an_error_not_a_good_run() -> None:
    told = asdict(GOOD)
    del told["requests_failed"]
    with pytest.raises(TypeError, match="requests_failed"):
        RunFacts(**told)


def test_every_gate_is_documented_with_its_effect() -> None:
    text = (
        (Path(__file__).parents[2] / "docs" / "gates.md")
        .read_text(encoding="utf-8")
        .partition("## Gates of a trial")[0]
    )
    rows = {
        row[0]: row[1]
        for row in re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*?) \|", text, re.MULTILINE)
    }
    words = {
        GateEffect.FLAG: "flag",
        GateEffect.VOID_RUN: "void run",
        GateEffect.VOID_TRIAL: "void trial",
    }
    assert rows.keys() == GATES.keys()
    assert {
        code: rows[code].endswith(words[effect]) for code, effect in GATES.items()
    } == dict.fromkeys(GATES, True)


RATIO = st.none() | st.floats(0, 2)
FACTS = st.builds(
    RunFacts, requests_ok=st.integers(0, 9), requests_failed=st.integers(0, 3), error_kinds=st.just({"timeout": 1}),
    finish_reasons=st.dictionaries(st.sampled_from(["length", "stop"]), st.integers(1, 9)), completion_tokens_min=st.integers(0, 500),
    completion_tokens_max=st.integers(0, 501), zero_token_requests=st.integers(0, 2), client_count_mismatch=RATIO, cached_token_ratio=RATIO,
    achieved_concurrency=st.floats(0, 9), dispatch_delay_p99_s=st.floats(0, 1), loop_lag_p99_s=st.floats(0, 1), speculation=st.booleans(),
    answered_share=st.none() | st.floats(0, 2),
    accept_length=RATIO,
)  # fmt: skip


@given(FACTS, st.sampled_from([CLOSED, OPEN]))
def test_a_tripped_gate_is_a_listed_one_no_worse_than_listed_and_comes_once(
    facts: RunFacts, workload: Workload
) -> None:
    found = run_gates(facts, workload, Measure())
    assert all(GateEffect.UNSPECIFIED < gate.effect <= GATES[gate.code] for gate in found)
    assert len({gate.code for gate in found}) == len(found)
    if facts.requests_failed or not facts.requests_ok or facts.zero_token_requests:
        assert is_void(RunResult(gates=found))


def test_answers_whose_lengths_were_drawn_are_each_as_long_as_asked() -> None:
    drawn = replace(CLOSED, output_tokens=0, output=Lengths("uniform", 5, 500))
    assert gates(drawn, completion_tokens_min=5, completion_tokens_max=400) == ()
    (gate,) = gates(drawn, off_length=2)
    assert (gate.code, gate.message) == (
        "short_output",
        "2 of 32 answers do not have the requested length",
    )
    (gate,) = gates(drawn, finish_reasons={"length": 31, "stop": 1})
    assert gate.message.endswith("finish reasons other than length: 1 × stop")


def test_a_ramp_is_an_open_loop_of_no_one_rate() -> None:
    ramp = replace(OPEN, rate_per_s=0.0, stages=(Stage(0, 8, 60),))
    assert [gate.code for gate in gates(ramp, dispatch_delay_p99_s=0.02)] == ["client_limited"]
    assert gates(ramp, answered_share=0.1) == ()


@pytest.mark.parametrize("cache", ["flush", "shared"])
def test_hits_that_were_asked_for_are_no_fault_and_their_want_is_told(cache: str) -> None:
    sharing = replace(CLOSED, cache=cache)
    assert gates(sharing, cached_token_ratio=0.7, planned_cached_ratio=0.75) == ()
    assert gates(sharing, cached_token_ratio=0.7, planned_cached_ratio=None) == ()
    (gate,) = gates(sharing, cached_token_ratio=0.1, planned_cached_ratio=0.75)
    assert (gate.code, gate.effect) == ("prefix_cache_missed", GateEffect.FLAG)
    assert gate.message.startswith(
        "10.0 % of the prompt tokens came from the prefix cache, 75.0 % could have"
    )
    (gate,) = gates(
        replace(CLOSED, cache="salt"), cached_token_ratio=0.1, planned_cached_ratio=0.75
    )
    assert gate.code == "prefix_cache_hit"


def test_users_who_think_are_not_missed_in_flight() -> None:
    chats = replace(CLOSED, turns=4, think_s=5.0)
    assert gates(chats, achieved_concurrency=2.0) == ()
    assert [gate.code for gate in gates(replace(chats, think_s=0.0), achieved_concurrency=2.0)] == [
        "client_limited"
    ]
