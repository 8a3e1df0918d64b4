"""Promises of what searches become: a number with its bracket for each launch, intervals that hold
what is open, verdicts over launches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.analysis.compare_jobs import compare_jobs
from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import (
    Comparison,
    ComparisonConditions,
    ComparisonRow,
)
from fleet_controller.analysis.launches import group_launches
from fleet_controller.analysis.slo_limits import all_limits
from fleet_controller.analysis.verdict import Verdict
from fleet_controller.core.controller_api import JobDetail, JobSummary, StoredRun
from fleet_controller.core.event_rules import sanitize_event
from fleet_controller.report.comparison_export import comparison_csv, comparison_json
from fleet_controller.report.comparison_output import comparison_remarks, comparison_table
from fleet_controller.report.job_output import show_json
from fleet_controller.report.job_progress import run_text
from fleet_controller.report.search_output import limits_table, loads_table, searches_markdown
from fleet_controller.report.terminal_layout import comparison_text
from fleet_protos.events import Event, RunFinished
from fleet_protos.search_rules import CONCURRENCY, RATE
from fleet_protos.trial_types import Gate, GateEffect, Outcome, Phase, RunResult, Searched

Bracket = tuple[float, float]  # highest met, lowest not met; 0: none
SUSTAINED = Gate("rate_not_sustained", GateEffect.FLAG, "the queue grows")


def a_search(
    variant: str,
    block: int,
    bracket: Bracket,
    ended: str = "",
    of: str = RATE,
    workload: str = "open",
) -> list[StoredRun]:
    """Three runs of a launch: one that met, one that did not, and the last one."""
    met, not_met = bracket
    ended = ended or ("found" if met and not_met else "above" if met else "below")
    told = [(met, True, ""), (not_met, False, ""), (met or not_met, bool(met), ended)]
    times = {"output_tok_s": 99.0, "tpot_s_mean": 0.01, "ttft_s_p99": 0.2, "tpot_s_p99": 1.5}
    runs = [
        RunResult(
            workload, index, block * 600 * 10**9, 60.0, requests_ok=100, gates=() if is_met else (SUSTAINED,),
            metrics={**times, "goodput_ratio": 1.0 if is_met else 0.4},
            searched=Searched(load, is_met, met, not_met, end, of),
        )
        for index, (load, is_met, end) in enumerate(told, start=1) if load
    ]  # fmt: skip
    return [
        StoredRun(f"job-b{block}-{variant}", 1, variant, "h1", block, Outcome.OK, run)
        for run in runs
    ]


def launches(
    variant: str, brackets: Sequence[Bracket], of: str = RATE, ended: str = ""
) -> list[StoredRun]:
    return [
        run
        for block, bracket in enumerate(brackets, start=1)
        for run in a_search(variant, block, bracket, ended, of)
    ]


def row_of(comparison: Comparison, variant: str) -> ComparisonRow:
    (row,) = [row for row in comparison.rows if row.variant == variant]
    return row


def compared(
    base: Sequence[Bracket], new: Sequence[Bracket], of: str = RATE, margin: float = 0.02
) -> ComparisonRow:
    return row_of(
        compare(launches("base", base, of) + launches("new", new, of), "base", margin=margin), "new"
    )


def test_a_search_has_one_row_of_its_highest_loads_and_none_of_its_throughput() -> None:
    runs = launches("base", [(10, 10.5), (11, 11.5), (12, 12.5)])
    [row] = compare(runs, "base").rows
    assert (row.metric, row.launches, row.runs, row.mean) == ("highest_rate_per_s", 3, 9, 11)
    assert group_launches(runs, ("output_tok_s",)) == []


def test_other_workloads_of_the_job_keep_their_metrics() -> None:
    single = replace(
        a_search("base", 1, (10, 11))[0],
        run=RunResult("single", 1, metrics={"output_tok_s": 80.0, "tpot_s_mean": 0.01}),
    )
    conditions = ComparisonConditions(judged={"single": ("output_tok_s",)})
    runs = [*launches("base", [(10, 11)]), single]
    rows = compare(runs, "base", conditions=conditions).rows
    assert [(row.workload, row.metric) for row in rows] == [
        ("open", "highest_rate_per_s"), ("single", "output_tok_s"), ("single", "tpot_s_mean")
    ]  # fmt: skip


def test_a_search_that_no_run_reached_has_its_row() -> None:
    runs = [
        replace(
            a_search("base", 1, (10, 11))[0],
            run=RunResult("single", 1, metrics={"output_tok_s": 80.0}),
        )
    ]
    conditions = ComparisonConditions(
        planned=(("base", "h1"),), workloads=("single", "open"), searches={"open": RATE}
    )
    row = compare(runs, "base", conditions=conditions).rows[-1]
    assert (row.metric, row.mean, row.reason) == ("highest_rate_per_s", None, "no valid launch")


def test_the_interval_of_the_mean_holds_what_the_searches_left_open() -> None:
    [row] = compare(launches("base", [(10, 11), (10, 11)]), "base").rows
    assert row.interval is not None
    assert (row.mean, row.interval.low, row.interval.high) == (10, 10, 11)


def test_what_is_open_does_not_hide_how_launches_differ() -> None:
    """Two launches of 11 and 12 users may both be 12: that says nothing of the next one."""
    [row] = compare(launches("base", [(12, 13), (11, 13)], CONCURRENCY), "base").rows
    assert row.interval is not None
    assert row.interval.low == pytest.approx(11.5 - 12.7062 / 2, rel=1e-4)
    assert row.interval.high == pytest.approx(11.5 + 12.7062 / 2 + 0.5, rel=1e-4)


def test_equal_brackets_are_no_equivalence_beyond_their_width() -> None:
    """Both limits lie in the same 5 %: nothing is known of which is higher, though the launches
    agree to the digit.
    """
    row = compared([(10, 10.5)] * 3, [(10, 10.5)] * 3)
    assert row.ratio_interval is not None
    assert row.ratio == 1.0
    # The launches agree to the digit, which counts as a noise of 0.05 %.
    assert row.ratio_interval.low == pytest.approx(1 / 1.05, rel=2e-3)
    assert row.ratio_interval.high == pytest.approx(1.05, rel=2e-3)
    assert row.verdict == Verdict.INCONCLUSIVE
    assert (
        "leave up to 5.0 % open; use a smaller `within`, because more launches do not help"
        in row.reason
    )
    assert row.needs is None
    assert compared([(10, 10.1)] * 3, [(10, 10.1)] * 3).verdict == Verdict.EQUIVALENT


def test_whole_requests_in_flight_leave_nothing_open_between_neighbours() -> None:
    row = compared([(25, 26)] * 3, [(25, 26)] * 3, CONCURRENCY)
    assert (row.metric, row.verdict) == ("highest_concurrency", Verdict.EQUIVALENT)
    assert compared([(25, 26)] * 3, [(26, 27)] * 3, CONCURRENCY).verdict == Verdict.FASTER


def test_a_higher_limit_is_faster_when_the_brackets_are_apart() -> None:
    row = compared([(10, 10.5), (10.5, 11), (10, 10.5)], [(12, 12.6), (12.6, 13.2), (12, 12.6)])
    assert (row.verdict, row.method) == (Verdict.FASTER, "paired")
    assert row.ratio == pytest.approx(1.2)
    assert compared([(12, 12.6)] * 3, [(10, 10.5)] * 3).verdict == Verdict.SLOWER
    assert compared([(10, 10.5)] * 3, [(10.4, 10.9)] * 3).verdict == Verdict.INCONCLUSIVE


def test_more_launches_are_asked_for_only_where_they_would_resolve_it() -> None:
    row = compared([(10, 10.2), (11, 11.2), (9, 9.2)], [(12, 12.2), (11.5, 11.7), (11, 11.2)])
    assert row.verdict == Verdict.INCONCLUSIVE
    assert row.needs is not None and row.needs.launches > 0


def test_a_limit_beyond_the_highest_load_is_open_and_never_a_number() -> None:
    comparison = compare(
        launches("base", [(10, 10.5), (10.5, 11)] * 2) + launches("new", [(64, 0)] * 4), "base"
    )
    row = row_of(comparison, "new")
    assert (row.mean, row.ratio) == (None, None)
    assert row.interval is not None and row.ratio_interval is not None
    assert (row.interval.low, row.interval.high) == (64, math.inf)
    assert row.ratio_interval.low > 4
    assert (row.verdict, math.isinf(row.ratio_interval.high)) == (
        Verdict.FASTER,
        True,
    )  # whatever lies beyond 64, it is above 10.5
    told = comparison_json(comparison)["rows"][1]
    assert (told["mean"], told["interval"], told["ratio_interval"][1]) == (None, [64.0, None], None)
    assert told["limits"] == [
        {"trial": f"job-b{block}-new", "met": 64, "not_met": None, "ended": "above"}
        for block in (1, 2, 3, 4)
    ]
    assert (
        "new open on h1, 4 of 4 launches: the SLO was met at the highest load of the search, 64/s"
        in "\n".join(comparison_remarks(comparison))
    )
    cells = comparison_table(comparison).rows[1]
    assert (
        "≥ 64.0 /s" in cells,
        "≥ 64.0" in cells,
        any(cell.startswith("≥ ×") for cell in cells),
    ) == (True, True, True)
    assert "inf" not in comparison_csv(comparison)


def test_a_limit_below_the_lowest_load_is_open_and_never_a_number() -> None:
    comparison = compare(
        launches("base", [(10, 10.5), (10.5, 11)] * 2) + launches("new", [(0, 2)] * 4), "base"
    )
    row = row_of(comparison, "new")
    assert row.interval is not None and row.ratio_interval is not None
    assert (row.mean, row.ratio, row.interval.low, row.interval.high) == (None, None, 0, 2)
    assert (row.verdict, row.ratio_interval.low) == (Verdict.SLOWER, 0)
    assert comparison_json(comparison)["rows"][1]["limits"][0] == {
        "trial": "job-b1-new",
        "met": None,
        "not_met": 2,
        "ended": "below",
    }
    assert "< 2.00 /s" in comparison_table(comparison).rows[1]
    assert "the SLO was not met at the lowest load of the search, 2/s" in "\n".join(
        comparison_remarks(comparison)
    )


@pytest.mark.parametrize("bracket", [(64.0, 0.0), (0.0, 1.0)])
def test_two_limits_beyond_the_same_end_are_inconclusive_and_no_launches_help(
    bracket: Bracket,
) -> None:
    row = compared([bracket] * 3, [bracket] * 3)
    assert (row.verdict, row.needs, row.ratio_interval) == (Verdict.INCONCLUSIVE, None, None)
    assert "above or below the loads that were searched" in row.reason


def test_one_launch_gives_no_interval_of_a_search_either() -> None:
    row = compared([(10, 10.5)], [(12, 12.6)])
    assert (row.mean, row.interval, row.verdict) == (12, None, Verdict.INCONCLUSIVE)
    assert row.ratio == pytest.approx(1.2)
    assert "one launch gives no interval" in row.reason


def test_what_the_client_could_not_drive_is_told() -> None:
    comparison = compare(launches("base", [(16, 0), (16, 0)], ended="client_limited"), "base")
    assert "the SLO was met at 16/s, and the client could not send the next load" in "\n".join(
        comparison_remarks(comparison)
    )


def test_an_attempt_that_failed_in_its_search_is_no_launch() -> None:
    failed = [
        replace(stored, trial_outcome=Outcome.FAILED) for stored in a_search("base", 1, (10, 10.5))
    ]
    again = [replace(stored, attempt=2) for stored in a_search("base", 1, (12, 12.6))]
    [row] = compare([*failed, *again], "base").rows
    assert (row.launches, row.mean, row.runs) == (1, 12, 3)
    assert [(limit.attempt, limit.met) for limit in all_limits([*failed, *again])] == [
        (1, 10),
        (2, 12),
    ]


def test_an_external_server_has_its_limit_and_no_verdict() -> None:
    runs = launches("base", [(10, 10.5)])
    [row] = compare(runs, "base", conditions=ComparisonConditions(engine="external")).rows
    assert (row.launches, row.mean, row.interval) == (0, 10, None)


def test_gates_of_a_row_are_not_those_by_which_a_load_was_not_met() -> None:
    [row] = compare(launches("base", [(10, 10.5)]), "base").rows
    assert row.gates == ()


def test_two_jobs_are_compared_by_their_searches_over_a_bridge() -> None:
    before, after = (
        launches("bridge", [(10, 10.1)] * 3) + launches("v", [(low, low * 1.01)] * 3)
        for low in (10, 13)
    )
    rows = compare_jobs(
        (ComparisonConditions("a"), before),
        (ComparisonConditions("b"), after),
        0.95,
        0.02,
        ["bridge"],
    ).rows
    assert [(row.metric, row.variant, row.method, row.verdict) for row in rows] == [
        ("highest_rate_per_s", "bridge", "", Verdict.INCONCLUSIVE),
        ("highest_rate_per_s", "v", "bridged", Verdict.FASTER),
    ]


def test_show_lists_what_each_launch_found_and_what_each_load_said() -> None:
    void = a_search("base", 1, (10, 10.5))[0]
    void = replace(
        void,
        run=replace(
            void.run, index=0, gates=(Gate("client_limited", GateEffect.VOID_RUN, "late"),)
        ),
    )
    runs = [*launches("base", [(10, 10.5), (64, 0)]), void]
    assert [row[4:] for row in limits_table(runs).rows] == [
        ("10/s", "10.5/s", "3", "found"), ("64/s", "–", "2", "met at the highest load: the limit is open above")
    ]  # fmt: skip
    loads = {row[2]: row[3:] for row in loads_table(runs).rows}
    assert loads["10/s"] == ("met", "2", "0", "1", "100.0 %", "200 ms", "1.5 s")
    assert loads["10.5/s"] == ("not met", "0", "1", "0", "40.0 %", "200 ms", "1.5 s")


@pytest.mark.parametrize(
    "odd",
    [
        Searched(math.inf, True, 1.0, 2.0, "found", RATE), Searched(1.0, True, math.nan, 2.0, "found", RATE),
        Searched(1.0, True, 1.0, -2.0, "found", RATE), Searched(1.0, True, 1.0, 2.0, "found", "users"),
    ],
)  # fmt: skip
def test_loads_that_cannot_be_are_not_believed(odd: Searched) -> None:
    event, _ = sanitize_event(
        Event(1, 1, "t", 1, 0, Phase.MEASURING, RunFinished(RunResult("open", 1, searched=odd)))
    )
    assert isinstance(event.body, RunFinished)
    assert event.body.run.searched == Searched()
    sound = replace(event, body=RunFinished(a_search("v", 1, (1, 2))[0].run))
    assert sanitize_event(sound)[0] == sound


BRACKETS = st.tuples(
    st.sampled_from([0.0, 1.0, 1e-9, 3.0, 1e15]), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e15])
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(BRACKETS, max_size=3),
    st.lists(BRACKETS, max_size=3),
    st.sampled_from([RATE, CONCURRENCY]),
)
def test_whatever_searches_tell_a_comparison_can_be_shown_and_written(
    base: list[Bracket], new: list[Bracket], of: str
) -> None:
    runs = launches("base", [(1, 2), *base], of) + launches("new", new, of)
    comparison = compare(
        runs,
        "base",
        conditions=ComparisonConditions(
            planned=(("base", "h1"), ("new", "h1")), workloads=("open",)
        ),
    )
    assert json.loads(json.dumps(comparison_json(comparison), allow_nan=False))["rows"]
    assert (
        comparison_text(comparison, 60, False)
        and comparison_text(comparison, None, False)
        and comparison_csv(comparison)
    )
    json.dumps(show_json(JobDetail(JobSummary("job")), runs), allow_nan=False)


def test_a_report_for_people_has_both_tables_and_one_without_a_search_has_none() -> None:
    told = searches_markdown(launches("base", [(10, 10.5)]))
    assert "| job-b1-base | 1 | base | open | 10/s | 10.5/s | 3 | found |" in told
    assert "| open | base | 10/s | met |" in told
    assert (
        searches_markdown([replace(a_search("base", 1, (10, 11))[0], run=RunResult("single", 1))])
        == ""
    )


def test_show_gives_the_runs_of_a_search_as_json() -> None:
    [told] = show_json(JobDetail(JobSummary("job")), a_search("base", 1, (10, 10.5)))["searches"]
    assert {key: told[key] for key in ("trial", "workload", "of", "met", "not_met", "ended")} == {
        "trial": "job-b1-base", "workload": "open", "of": "rate", "met": 10, "not_met": 10.5, "ended": "found"
    }  # fmt: skip
    assert [(run["run"], run["load"], run["answer"], run["goodput"]) for run in told["runs"]] == [
        (1, 10, "met", 1.0), (2, 10.5, "not_met", 0.4), (3, 10, "met", 1.0)
    ]  # fmt: skip


def test_progress_says_load_answer_and_at_last_the_bracket() -> None:
    runs = [stored.run for stored in a_search("base", 1, (10, 10.5))]
    simulated = JobSummary(engine="simulated", time_scale=20)
    assert run_text(runs[0], simulated) == "open at 10/s: met, goodput 100.0 % (simulated ×20)"
    assert (
        run_text(runs[1], JobSummary(engine="sglang")) == "open at 10.5/s: not met, goodput 40.0 %"
    )
    assert run_text(runs[2], JobSummary(engine="sglang")).endswith(
        "; highest met 10/s, lowest not met 10.5/s"
    )
    users = replace(runs[0], searched=replace(runs[0].searched, of=CONCURRENCY))
    assert run_text(users, JobSummary(engine="sglang")).startswith("open at 10 at once: met")
