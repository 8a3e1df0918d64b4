"""Promises of the comparison: which launches count, what meets what, and which verdict follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from fleet_controller.analysis.compare_jobs import compare_job_groups, compare_jobs
from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import (
    Comparison,
    ComparisonConditions,
    ComparisonRow,
)
from fleet_controller.analysis.launches import minutes_per_launch
from fleet_controller.analysis.verdict import Verdict
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Gate, GateEffect, Outcome, RunResult

EAGLE3_TUNED = (81.0, 83.6, 82.8, 92.0, 94.0)


def a_run(variant: str, block: int, tok_s: float, **changes: object) -> StoredRun:
    metrics = {"output_tok_s": tok_s, "tpot_s_mean": 1 / tok_s}
    run = RunResult(
        workload="single",
        index=1,
        started_unix_ns=block * 600 * 10**9,
        duration_s=60.0,
        metrics=metrics,
    )
    trial = f"job-b{block}-{variant}"
    stored = StoredRun(trial, 1, variant, "h1", block, Outcome.OK, run)
    return replace(stored, **changes)  # type: ignore[arg-type]


def launches(variant: str, values: Sequence[float]) -> list[StoredRun]:
    return [a_run(variant, block, value) for block, value in enumerate(values, start=1)]


def row_of(comparison: Comparison, variant: str, metric: str = "output_tok_s") -> ComparisonRow:
    (row,) = [row for row in comparison.rows if (row.variant, row.metric) == (variant, metric)]
    return row


def verdict_of(
    values: Iterable[float], reference: Iterable[float], margin: float = 0.02
) -> Verdict | None:
    runs = launches("base", list(reference)) + launches("new", list(values))
    return row_of(compare(runs, "base", margin=margin), "new").verdict


def with_gate(stored: StoredRun, effect: GateEffect) -> StoredRun:
    return replace(
        stored, run=replace(stored.run, gates=(Gate("short_output", effect, "3 of 8 ended early"),))
    )


def test_workloads_come_in_the_order_of_the_job_and_one_that_no_run_reached_has_its_rows() -> None:
    runs = [
        replace(stored, run=replace(stored.run, workload=name))
        for name in ("busy", "single")
        for stored in launches("base", [80, 81])
    ]
    conditions = ComparisonConditions(
        "job", planned=(("base", "h1"),), workloads=("single", "busy", "never")
    )
    rows = compare(runs, "base", conditions=conditions).rows
    assert [row.workload for row in rows] == ["single", "single", "busy", "busy", "never", "never"]
    assert [row.mean for row in rows if row.workload == "never"] == [None, None]
    assert compare([], "base", conditions=conditions).rows == ()


def test_published_speculation_against_its_single_baseline_launch_is_inconclusive() -> None:
    row = row_of(
        compare(launches("tuned", [88.8]) + launches("eagle3", EAGLE3_TUNED), "tuned"), "eagle3"
    )
    assert row.verdict == Verdict.INCONCLUSIVE
    assert "one launch gives no interval" in row.reason
    assert row.needs is not None
    assert 42 <= row.needs.launches <= 48
    assert "±2 %" in row.needs.message
    assert row.ratio == pytest.approx(86.68 / 88.8)
    assert row.ratio_interval is None


@pytest.mark.parametrize(
    ("values", "reference", "expected"),
    [
        ([120, 121, 119], [80, 81, 79.5], Verdict.FASTER),
        ([80, 81, 79.5], [120, 121, 119], Verdict.SLOWER),
        ([100.2, 101.1, 99.0], [100.0, 101.0, 99.1], Verdict.EQUIVALENT),
        ([100, 120, 90], [101, 99, 103], Verdict.INCONCLUSIVE),
        (
            [101.0, 102.01, 99.99],
            [100.0, 101.0, 99.0],
            Verdict.EQUIVALENT,
        ),  # surely faster by 1 %, which does not matter
    ],
)
def test_verdict_follows_the_interval_and_the_margin(
    values: list[float], reference: list[float], expected: Verdict
) -> None:
    assert verdict_of(values, reference) == expected


def test_time_metric_is_faster_when_it_is_smaller() -> None:
    comparison = compare(
        launches("base", [62.9, 63.0, 62.8]) + launches("tuned", [88.8, 88.7, 88.9]), "base"
    )
    time_row, rate_row = row_of(comparison, "tuned", "tpot_s_mean"), row_of(comparison, "tuned")
    assert (time_row.verdict, rate_row.verdict) == (Verdict.FASTER, Verdict.FASTER)
    assert time_row.ratio == pytest.approx(62.9 / 88.8, rel=1e-3)


def test_pairing_by_block_takes_drift_out() -> None:
    drifting = [100.0, 110.0, 121.0, 133.0]
    row = row_of(
        compare(
            launches("base", drifting) + launches("new", [value * 1.05 for value in drifting]),
            "base",
        ),
        "new",
    )
    assert (row.verdict, row.method) == (Verdict.FASTER, "paired")


def test_runs_of_one_launch_never_count_as_launches() -> None:
    many_runs = [a_run("new", 1, 90 + index / 10) for index in range(20)]
    row = row_of(compare(launches("base", [80, 81, 79]) + many_runs, "base"), "new")
    assert (row.launches, row.runs, row.interval, row.verdict) == (
        1,
        20,
        None,
        Verdict.INCONCLUSIVE,
    )
    assert row.mean == pytest.approx(90.948, abs=1e-3)  # the geometric mean of the runs


def test_voided_run_is_counted_as_a_gate_and_never_as_a_number() -> None:
    runs = [
        *launches("base", [80, 81]),
        *launches("new", [90, 91]),
        with_gate(a_run("new", 1, 5000), GateEffect.VOID_RUN),
    ]
    row = row_of(compare(runs, "base"), "new")
    assert (row.mean, row.runs) == (pytest.approx(90.5), 2)
    assert [(gate.code, gate.count, gate.message) for gate in row.gates] == [
        ("short_output", 1, "3 of 8 ended early")
    ]


def test_flagged_run_is_a_number_and_its_gate_is_counted() -> None:
    row = row_of(
        compare(
            [*launches("base", [80, 81]), with_gate(a_run("new", 1, 90), GateEffect.FLAG)], "base"
        ),
        "new",
    )
    assert (row.mean, row.gates[0].count) == (90.0, 1)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED, Outcome.UNSPECIFIED])
def test_attempt_that_did_not_end_ok_never_becomes_a_number(outcome: Outcome) -> None:
    row = row_of(
        compare(
            [*launches("base", [80, 81]), a_run("new", 1, 5000, trial_outcome=outcome)], "base"
        ),
        "new",
    )
    assert (row.mean, row.launches, row.runs, row.verdict) == (None, 0, 0, Verdict.INCONCLUSIVE)


def test_only_the_newest_ok_attempt_of_a_trial_counts() -> None:
    attempts = [
        a_run("new", 1, 50, attempt=1),
        a_run("new", 1, 90, attempt=2),
        a_run("new", 1, 5000, attempt=3, trial_outcome=Outcome.FAILED),
    ]
    row = row_of(compare(launches("base", [80, 81]) + attempts, "base"), "new")
    assert (row.mean, row.launches) == (90.0, 1)


def test_planned_variant_without_a_valid_launch_has_a_row_that_says_so() -> None:
    conditions = ComparisonConditions(planned=(("base", "h1"), ("broken", "h1")))
    row = row_of(compare(launches("base", [80, 81]), "base", conditions=conditions), "broken")
    assert (row.mean, row.verdict, row.reason) == (
        None,
        Verdict.INCONCLUSIVE,
        "no valid launch of this variant",
    )


def test_baseline_has_ratio_one_and_no_verdict() -> None:
    comparison = compare(launches("new", [90, 91]) + launches("base", [80, 81]), "base")
    assert comparison.rows[0].variant == "base"
    assert (comparison.rows[0].ratio, comparison.rows[0].verdict, comparison.rows[0].needs) == (
        1.0,
        None,
        None,
    )


def test_hosts_and_workloads_are_never_pooled() -> None:
    slow = launches("base", [40, 41]) + launches("new", [60, 61])
    other = [replace(stored, host="h2", trial_id=stored.trial_id + "-h2") for stored in slow]
    comparison = compare(launches("base", [80, 81]) + launches("new", [90, 91]) + other, "base")
    rows = [
        (row.host, row.variant, row.mean) for row in comparison.rows if row.metric == "output_tok_s"
    ]
    assert rows == [
        ("h1", "base", 80.5),
        ("h1", "new", 90.5),
        ("h2", "base", 40.5),
        ("h2", "new", 60.5),
    ]


def test_external_engine_never_gets_a_verdict_about_launches() -> None:
    runs = launches("base", [80, 80.1, 80.2]) + launches("new", [120, 121, 122])
    comparison = compare(runs, "base", conditions=ComparisonConditions(engine="external"))
    row = row_of(comparison, "new")
    assert (row.verdict, row.interval, row.ratio_interval, row.needs, row.launches) == (
        Verdict.INCONCLUSIVE,
        None,
        None,
        None,
        0,
    )
    assert "no verdict is possible without launches" in comparison.notes[0]


def test_simulated_results_say_so_with_their_time_scale() -> None:
    comparison = compare(
        launches("base", [80, 81]),
        "base",
        conditions=ComparisonConditions(engine="simulated", time_scale=240),
    )
    assert "simulated ×240" in comparison.notes[0]


def test_needed_launches_cost_minutes_of_both_sides() -> None:
    runs = launches("base", [101, 99, 103]) + launches("new", [100, 108, 96])
    row = row_of(compare(runs, "base"), "new")
    assert row.needs is not None
    assert row.needs.launches > 0
    shifted = [
        replace(run, run=replace(run.run, started_unix_ns=index * 300 * 10**9))
        for index, run in enumerate(runs)
    ]
    assert minutes_per_launch(shifted) == pytest.approx(5.0)
    needs = row_of(compare(shifted, "base"), "new").needs
    assert needs is not None
    assert needs.minutes == pytest.approx(2 * 5.0 * needs.launches)


def test_hopeless_noise_is_capped_with_a_plain_message() -> None:
    row = row_of(
        compare(
            launches("base", [100, 300, 100, 300]) + launches("new", [300, 100, 300, 102]), "base"
        ),
        "new",
    )
    assert row.needs is not None
    assert row.needs.launches == 1000
    assert row.needs.message.startswith("more than 1000 launches")


def test_swapping_baseline_and_variant_inverts_ratio_and_verdict() -> None:
    runs = launches("a", [62.9, 64.0, 62.0]) + launches("b", [88.8, 87.0, 90.0])
    forward, backward = row_of(compare(runs, "a"), "b"), row_of(compare(runs, "b"), "a")
    assert forward.ratio is not None
    assert backward.ratio == pytest.approx(1 / forward.ratio)
    assert (forward.verdict, backward.verdict) == (Verdict.FASTER, Verdict.SLOWER)


def test_unknown_baseline_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match="baseline 'x' is not a variant"):
        compare(launches("a", [1, 2]), "x")


@pytest.mark.parametrize(
    ("confidence", "margin"), [(0.0, 0.02), (1.0, 0.02), (95, 0.02), (0.95, -0.1), (0.95, 2)]
)
def test_impossible_confidence_or_margin_is_the_users_error(
    confidence: float, margin: float
) -> None:
    with pytest.raises(ConfigError):
        compare(launches("a", [1, 2]), "a", confidence, margin)


def job_of(name: str, **values: Sequence[float]) -> tuple[ComparisonConditions, list[StoredRun]]:
    runs = [run for variant, own in values.items() for run in launches(variant, own)]
    return ComparisonConditions(
        job=name, engine="sglang", judged={"single": ("output_tok_s",)}
    ), runs


def test_two_jobs_meet_by_variant_name_and_have_no_verdict_without_a_bridge() -> None:
    before, after = (
        job_of("j1", v=[80, 81, 82], gone=[1, 2]),
        job_of("j2", v=[90, 91, 92], fresh=[5, 6]),
    )
    comparison = compare_jobs(before, after, 0.95, 0.02)
    row = row_of(comparison, "v")
    assert (comparison.job, comparison.baseline, row.verdict, row.method) == (
        "j2",
        "j1",
        Verdict.INCONCLUSIVE,
        "unpaired",
    )
    assert row.ratio == pytest.approx(91 / 81, rel=1e-3)
    assert "no variant has the same configuration in both" in row.reason
    assert "no valid launch in the first job" in row_of(comparison, "fresh").reason
    assert "not in the second job: gone on h1, workload single" in comparison.notes


def test_a_bridge_takes_the_difference_of_the_sessions_out() -> None:
    """The second session is 10 % faster as a whole, and the change makes `v` 30 % faster."""
    before = job_of("j1", bridge=[100, 101, 99.5, 100.2], v=[80, 80.9, 79.5, 80.1])
    after = job_of("j2", bridge=[110, 111, 109.5, 110.2], v=[114.4, 115.5, 113.9, 114.6])
    comparison = compare_jobs(before, after, 0.95, 0.02, ["bridge"])
    row, bridge = row_of(comparison, "v"), row_of(comparison, "bridge")
    assert (row.verdict, row.method) == (Verdict.FASTER, "bridged")
    assert row.ratio == pytest.approx(1.3, rel=1e-2)
    assert (bridge.verdict, round(bridge.ratio or 0, 2)) == (Verdict.INCONCLUSIVE, 1.10)
    assert "how much the two sessions differ" in bridge.reason


def test_three_jobs_a_side_are_judged_by_jobs_and_not_by_launches() -> None:
    """Sessions differ by 10 %, so that launches within a job say nothing about the change."""
    old = [job_of(f"o{level}", v=[level, level + 0.1, level - 0.1]) for level in (100, 110, 90)]
    new = [job_of(f"n{level}", v=[level, level + 0.1, level - 0.1]) for level in (104, 114, 94)]
    row = row_of(compare_job_groups(old, new, 0.95, 0.02), "v")
    assert (row.verdict, row.method) == (Verdict.INCONCLUSIVE, "jobs")
    close = [job_of(f"n{level}", v=[level] * 3) for level in (150, 151, 149)]
    same = [job_of(f"o{level}", v=[level] * 3) for level in (100, 101, 99)]
    assert row_of(compare_job_groups(same, close, 0.95, 0.02), "v").verdict == Verdict.FASTER
    with pytest.raises(ConfigError, match="--old has 2 jobs, and 3 are needed"):
        compare_job_groups(old[:2], new, 0.95, 0.02)


@pytest.mark.parametrize(("one", "other"), [("simulated", "sglang"), ("external", "simulated")])
def test_simulated_and_real_are_never_compared(one: str, other: str) -> None:
    with pytest.raises(ConfigError, match="cannot be compared"):
        compare_jobs(
            (ComparisonConditions("a", one), launches("v", [1, 2])),
            (ComparisonConditions("b", other), launches("v", [1, 2])),
            0.95,
            0.02,
        )


def test_a_variant_whose_trials_all_failed_says_so_and_needs_no_more_launches() -> None:
    conditions = ComparisonConditions(
        planned=(("base", "h1"), ("broken", "h1")), failures={("broken", "h1"): "short_output ×2"}
    )
    comparison = compare(launches("base", [80, 81]), "base", conditions=conditions)
    row = row_of(comparison, "broken")
    assert (row.verdict, row.needs) == (Verdict.INCONCLUSIVE, None)
    assert row.reason == "no valid launch: broken failed (short_output ×2)"


def test_a_baseline_whose_trials_all_failed_is_named_in_every_row() -> None:
    conditions = ComparisonConditions(
        planned=(("base", "h1"), ("other", "h1")), failures={("base", "h1"): "oom_kv_cache ×3"}
    )
    comparison = compare(launches("other", [80, 81]), "base", conditions=conditions)
    assert row_of(comparison, "other").reason == "no valid launch: base failed (oom_kv_cache ×3)"
    assert row_of(comparison, "other").needs is None
