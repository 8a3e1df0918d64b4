"""Promises of the search for the highest load: it ends, stays inside its bounds, and its bracket
holds the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.core import load_search as core
from fleet_agent.core.gates import CAPACITY, DISPATCH_DELAY, LOOP_LAG
from fleet_agent.core.load_search import (
    LoadAnswer,
    NextLoad,
    SearchRun,
    judge_search_run,
    next_load,
    next_repeat,
    share_met,
    to_search_run,
)
from fleet_protos.search_rules import CONCURRENCY, RATE, max_loads, max_runs
from fleet_protos.trial_types import Gate, GateEffect, RunResult, Search, Slo, Workload, is_void

RATES = Search(RATE, 1.0, 64.0, 0.05, 0.99)
USERS = Search(CONCURRENCY, 1.0, 64.0, 0.05, 0.99)
MET, NOT_MET, VOID, CLIENT = (
    LoadAnswer.MET,
    LoadAnswer.NOT_MET,
    LoadAnswer.VOID,
    LoadAnswer.CLIENT_LIMITED,
)


def searched(
    search: Search, answer: Callable[[float, int], LoadAnswer]
) -> tuple[list[SearchRun], NextLoad]:
    """All runs of a search, `answer` saying what the n-th run (from 0) of a load is."""
    told: list[SearchRun] = []
    while not (following := next_load(search, told)).ended:
        told.append(
            SearchRun(following.load, answer(following.load, next_repeat(following.load, told) - 1))
        )
        assert len(told) <= max_runs(search)
    assert following.load == 0
    return told, following


def up_to(limit: float) -> Callable[[float, int], LoadAnswer]:
    return lambda load, _: MET if load <= limit else NOT_MET


def in_turn(
    answers: Sequence[LoadAnswer], then: Callable[[float, int], LoadAnswer]
) -> Callable[[float, int], LoadAnswer]:
    """The first runs of the search have these answers, the others are as they are by `then`."""
    left = iter(answers)
    return lambda load, count: next(left, None) or then(load, count)


def test_a_search_doubles_then_halves_and_measures_again_what_decides() -> None:
    told, end = searched(RATES, up_to(12.6))
    assert [one.load for one in told] == [
        1,
        2,
        4,
        8,
        16,
        16,
        11.31,
        13.45,
        13.45,
        12.33,
        12.88,
        12.88,
        12.33,
    ]
    assert end == NextLoad(0.0, 12.33, 12.88, core.FOUND)


def test_whole_requests_in_flight_are_searched_down_to_neighbours() -> None:
    told, end = searched(USERS, up_to(5))
    assert [one.load for one in told] == [1, 2, 4, 8, 8, 6, 6, 5, 5]
    assert end == NextLoad(0.0, 5.0, 6.0, core.FOUND)


def test_a_limit_at_or_beyond_the_highest_load_is_open_above() -> None:
    told, end = searched(RATES, up_to(64))
    assert [one.load for one in told] == [1, 2, 4, 8, 16, 32, 64, 64]
    assert end == NextLoad(0.0, 64.0, 0.0, core.ABOVE)


def test_a_limit_below_the_lowest_load_is_open_below() -> None:
    assert searched(RATES, up_to(0.9)) == (
        [SearchRun(1.0, NOT_MET)] * 3,
        NextLoad(0.0, 0.0, 1.0, core.BELOW),
    )


def test_two_bad_runs_in_a_row_at_the_lowest_load_do_not_end_the_search() -> None:
    """As of a host that was busy for some seconds."""
    told, end = searched(RATES, in_turn([NOT_MET, NOT_MET], up_to(12.6)))
    assert [one.load for one in told[:6]] == [1, 1, 1, 1, 1, 2]
    assert (end.highest_met, end.ended) == (12.33, core.FOUND)


def test_one_bad_run_does_not_decide_a_load() -> None:
    """As of a server that was cold."""
    told, end = searched(RATES, in_turn([NOT_MET], up_to(12.6)))
    assert [one.load for one in told[:4]] == [1, 1, 1, 2]
    assert (end.highest_met, end.ended) == (12.33, core.FOUND)


def test_a_load_that_was_met_by_luck_is_found_out_before_it_is_the_result() -> None:
    lucky = {12.88: [MET]}
    told, end = searched(
        RATES, lambda load, count: next(iter(lucky.get(load, [])[count:]), up_to(12.6)(load, count))
    )
    assert [one.answer for one in told if one.load == 12.88] == [MET, NOT_MET, NOT_MET]
    assert end == NextLoad(0.0, 12.33, 12.88, core.FOUND)


def test_a_void_run_says_nothing_and_its_load_is_measured_again() -> None:
    told, end = searched(RATES, in_turn([MET, VOID, VOID, MET, CLIENT], up_to(12.6)))
    assert [one.load for one in told[:6]] == [1, 2, 2, 2, 4, 4]
    assert end.highest_met == 12.33


def test_three_void_runs_in_a_row_give_up() -> None:
    told, end = searched(RATES, in_turn([MET, VOID, CLIENT, VOID], up_to(9)))
    assert (len(told), end.ended) == (4, core.VOID_RUNS)


def test_a_load_that_the_client_cannot_drive_ends_the_search_open_above() -> None:
    told, end = searched(RATES, lambda load, _: CLIENT if load > 20 else MET)
    assert [one.load for one in told] == [1, 2, 4, 8, 16, 32, 32, 32, 16]
    assert end == NextLoad(0.0, 16.0, 0.0, core.CLIENT)


def test_a_load_that_the_client_drove_now_and_then_is_decided_by_those_runs() -> None:
    answers = {16: [CLIENT, CLIENT, NOT_MET, CLIENT, CLIENT, NOT_MET]}
    told, end = searched(
        RATES,
        lambda load, count: next(iter(answers.get(load, [])[count:]), up_to(12.6)(load, count)),
    )
    assert [one.load for one in told[4:11]] == [16] * 6 + [11.31]
    assert end.ended == core.FOUND


def test_a_client_that_cannot_drive_the_lowest_load_gives_up() -> None:
    assert searched(RATES, lambda load, _: CLIENT)[1] == NextLoad(0.0, 0.0, 0.0, core.VOID_RUNS)


@given(
    st.floats(0.5, 100.0),
    st.sampled_from([0.001, 0.01, 0.05, 0.3]),
    st.sampled_from([RATE, CONCURRENCY]),
)
def test_the_bracket_holds_the_limit_and_is_as_narrow_as_asked(
    limit: float, within: float, of: str
) -> None:
    search = Search(of, 1.0, 64.0, within, 0.99)
    told, end = searched(search, up_to(limit))
    if end.ended == core.ABOVE:
        assert limit >= 64 == end.highest_met
    elif end.ended == core.BELOW:
        assert limit < 1 == end.lowest_not_met
    else:
        assert end.ended == core.FOUND
        assert end.highest_met <= limit < end.lowest_not_met
        neighbours = of == CONCURRENCY and end.lowest_not_met - end.highest_met == 1
        assert neighbours or end.lowest_not_met / end.highest_met <= 1 + within + 1e-6
    assert len(told) <= 2 * max_loads(search) + 1
    assert of == RATE or all(one.load.is_integer() for one in told)


SEARCHES = st.builds(
    lambda of, least, times, within: Search(of, float(least), float(least * times), within, 0.99),
    st.sampled_from([RATE, CONCURRENCY]), st.integers(1, 50), st.integers(2, 3000), st.floats(0.001, 0.9),
)  # fmt: skip


@settings(max_examples=300)
@given(SEARCHES, st.lists(st.sampled_from(LoadAnswer), min_size=1, max_size=60))
def test_whatever_runs_say_the_search_ends_inside_its_bounds_by_what_two_runs_said(
    search: Search, answers: list[LoadAnswer]
) -> None:
    said = (answers * (max_runs(search) // len(answers) + 1)).__iter__()
    told, end = searched(search, lambda load, count: next(said))
    assert len(told) <= max_runs(search)
    assert all(search.least <= one.load <= search.most for one in told)
    counts = Counter((one.load, one.answer) for one in told)
    for load, answer in counts:
        most = 3 if load == search.least else 2
        assert answer not in (MET, NOT_MET) or counts[load, answer] <= most
    if end.highest_met:
        assert counts[end.highest_met, MET] in ((2, 3) if end.highest_met == search.least else (2,))
    if end.lowest_not_met:
        assert counts[end.lowest_not_met, NOT_MET] == (
            3 if end.lowest_not_met == search.least else 2
        )
    assert not (end.highest_met and end.lowest_not_met) or end.highest_met < end.lowest_not_met


@given(st.floats(0.5, 100.0), st.floats(0.5, 100.0))
def test_variants_visit_the_same_loads_wherever_their_limits_are(one: float, other: float) -> None:
    """A load that both try is bit for bit the same, so its prompts and arrivals are."""
    loads = [{told.load for told in searched(RATES, up_to(limit))[0]} for limit in (one, other)]
    shared = [
        load for load in loads[0] if any(abs(load / theirs - 1) < 1e-9 for theirs in loads[1])
    ]
    assert set(shared) <= loads[1]


AT_FOUR = Workload("w", rate_per_s=4.0, slo=Slo(2.0), search=RATES)


def a_run(goodput: float, ok: int = 100, failed: int = 0, *gates: Gate) -> RunResult:
    return RunResult(
        "w",
        1,
        requests_ok=ok,
        requests_failed=failed,
        metrics={"goodput_ratio": goodput, "output_tok_s": 5.0},
        gates=gates,
    )


def answer(run: RunResult, kinds: dict[str, int] | None = None) -> LoadAnswer:
    return to_search_run(judge_search_run(run, AT_FOUR, kinds or {}, ())).answer


@pytest.mark.parametrize(
    ("goodput", "expected"), [(1.0, MET), (0.99, MET), (0.989, NOT_MET), (0.0, NOT_MET)]
)
def test_a_run_meets_the_slo_by_its_share_of_requests(goodput: float, expected: LoadAnswer) -> None:
    assert answer(a_run(goodput)) is expected


def test_a_run_says_its_load_and_what_is_known_after_it() -> None:
    run = judge_search_run(a_run(1.0), replace(AT_FOUR, rate_per_s=2.0), {}, (SearchRun(1.0, MET),))
    assert (run.searched.load, run.searched.met, run.searched.highest_met, run.searched.lowest_not_met, run.searched.ended) == (
        2.0, True, 2.0, 0.0, ""
    )  # fmt: skip
    last = judge_search_run(
        a_run(0.1), replace(AT_FOUR, rate_per_s=1.0), {}, (SearchRun(1.0, NOT_MET),) * 2
    )
    assert (last.searched.met, last.searched.lowest_not_met, last.searched.ended) == (
        False,
        1.0,
        core.BELOW,
    )


FAILED = Gate("requests_failed", GateEffect.VOID_RUN, "3 of 103 requests failed")


def test_requests_that_fail_under_load_are_an_answer_and_no_void_run() -> None:
    run = judge_search_run(
        a_run(1.0, 100, 3, FAILED), AT_FOUR, {"timeout": 2, "http_status": 1}, ()
    )
    assert share_met(run) == pytest.approx(100 / 103)
    assert (is_void(run), run.searched.met, to_search_run(run).answer) == (False, False, NOT_MET)
    assert "count as not meeting" in run.gates[0].message


@pytest.mark.parametrize(
    ("ok", "kinds"),
    [(0, {"timeout": 3}), (100, {"connect": 3}), (100, {"timeout": 2, "malformed": 1})],
)
def test_requests_that_fail_for_another_reason_than_load_say_nothing_of_it(
    ok: int, kinds: dict[str, int]
) -> None:
    assert answer(a_run(1.0, ok, 3, FAILED), kinds) is VOID


def test_a_rate_that_is_not_sustained_is_not_met_however_good_the_answers() -> None:
    assert (
        answer(a_run(1.0, 100, 0, Gate("rate_not_sustained", GateEffect.FLAG, "the queue grows")))
        is NOT_MET
    )


def late(run: RunResult, seconds: float) -> RunResult:
    return replace(run, metrics={**run.metrics, "dispatch_delay_s_p99": seconds})


@pytest.mark.parametrize("reasons", [(DISPATCH_DELAY,), (CAPACITY, LOOP_LAG)])
def test_a_client_at_its_limit_is_never_the_servers_limit(reasons: tuple[str, ...]) -> None:
    flag = Gate("client_limited", GateEffect.FLAG, "late", reasons)
    assert (
        answer(late(a_run(0.5, 100, 0, flag), 0.21)),
        answer(late(a_run(1.0, 100, 0, flag), 0.21)),
    ) == (CLIENT, MET)
    assert answer(a_run(1.0, 100, 0, replace(flag, effect=GateEffect.VOID_RUN))) is CLIENT


def test_a_miss_by_far_more_than_the_client_was_late_is_the_servers() -> None:
    """Half of the requests waited 5 s longer than allowed, and the client was 1 s late: it had less
    load than was asked for.
    """
    void = Gate("client_limited", GateEffect.VOID_RUN, "late", (DISPATCH_DELAY, CAPACITY))
    waited = a_run(0.2, 100, 0, void)
    waited = replace(waited, metrics={**waited.metrics, "ttft_s_p50": 7.0})
    far, near = late(waited, 1.0), late(waited, 6.0)
    assert (answer(far), answer(near)) == (NOT_MET, CLIENT)
    assert "half of the requests missed" in judge_search_run(far, AT_FOUR, {}, ()).gates[0].message
    slow = replace(a_run(0.2, 100, 0, void), metrics={"goodput_ratio": 0.2, "tpot_s_p50": 0.06})
    assert (
        to_search_run(judge_search_run(slow, replace(AT_FOUR, slo=Slo(0.0, 0.05)), {}, ())).answer
        is NOT_MET
    )
    assert (
        answer(replace(waited, metrics={"goodput_ratio": 1.0})) is CLIENT
    )  # it met less load than was asked for


def test_sends_that_were_late_by_little_of_the_limit_excuse_nothing() -> None:
    """15 ms are no reason for a time to first token of more than 2 s; nor are any for the time per
    token.
    """
    run = a_run(0.5, 100, 0, Gate("client_limited", GateEffect.FLAG, "late", (DISPATCH_DELAY,)))
    assert answer(late(run, 0.015)) is NOT_MET
    assert (
        to_search_run(
            judge_search_run(late(run, 0.21), replace(AT_FOUR, slo=Slo(0.0, 0.05)), {}, ())
        ).answer
        is NOT_MET
    )


def test_a_late_loop_alone_makes_no_answer_late_so_it_excuses_nothing() -> None:
    assert (
        answer(
            a_run(0.5, 100, 0, Gate("client_limited", GateEffect.FLAG, "woke late", (LOOP_LAG,)))
        )
        is NOT_MET
    )


def test_a_void_run_is_never_called_met() -> None:
    run = judge_search_run(
        a_run(1.0, 100, 0, Gate("short_output", GateEffect.VOID_RUN, "short")), AT_FOUR, {}, ()
    )
    assert (run.searched.met, to_search_run(run).answer) == (False, VOID)


def test_a_load_that_the_client_cannot_drive_decides_nothing_above_one_that_is_not_met() -> None:
    below = [SearchRun(8.0, MET), *[SearchRun(16.0, CLIENT)] * 3, *[SearchRun(8.0, NOT_MET)] * 3]
    assert next_load(Search(RATE, 8.0, 64.0, 0.05, 0.99), below).ended == core.BELOW
    within = [
        *(SearchRun(load, MET) for load in (1.0, 2.0, 4.0, 8.0)),
        *[SearchRun(16.0, CLIENT)] * 3,
        *[SearchRun(8.0, NOT_MET)] * 2,
        SearchRun(4.0, MET),
    ]
    assert next_load(RATES, within).load == 5.657


def test_a_search_that_ends_with_its_last_run_has_found_what_it_found() -> None:
    narrow = Search(RATE, 1.0, 2.0, 1.0, 0.99)
    told = [SearchRun(1.0, MET)] * (max_runs(narrow) - 4) + [
        SearchRun(1.0, MET),
        *[SearchRun(2.0, NOT_MET)] * 2,
        SearchRun(1.0, MET),
    ]
    assert len(told) == max_runs(narrow)
    assert next_load(narrow, told).ended == core.FOUND
