"""Promises about all verdicts of a job together."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from fleet_controller.analysis.cell_judgement import judge_cell
from fleet_controller.analysis.cell_model import LaunchValue, fit_cell
from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_rows import ComparisonRow
from fleet_controller.analysis.comparison_values import ComparisonConditions
from fleet_controller.analysis.csv_runs import parse_csv_runs
from fleet_controller.analysis.dunnett import dunnett_quantile
from fleet_controller.analysis.ratio_estimates import cell_estimates
from fleet_controller.analysis.regression_rule import RegressionRule
from fleet_controller.analysis.statistics import t_quantile
from fleet_controller.analysis.verdict import Outlook, Question, Verdict
from fleet_protos.errors import ConfigError


def equal(count: int, correlation: float = 0.5) -> list[list[float]]:
    return [[1.0 if i == j else correlation for j in range(count)] for i in range(count)]


@pytest.mark.parametrize(
    ("variants", "degrees", "expected"), [(5, 10, 2.990), (5, 20, 2.735), (2, 4, 3.310)]
)
def test_dunnetts_values_are_those_of_the_tables(
    variants: int, degrees: int, expected: float
) -> None:
    assert dunnett_quantile(0.95, degrees, equal(variants)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("one_sided", [False, True])
def test_one_variant_has_students_t(one_sided: bool) -> None:
    confidence = 0.9 if one_sided else 0.95
    found = dunnett_quantile(0.95, 7, [[1.0]], one_sided=one_sided)
    assert found == pytest.approx(t_quantile(confidence, 7))


def test_other_correlations_give_a_value_that_is_never_too_small() -> None:
    from scipy.stats import multivariate_t

    matrix = [[1.0, 0.3, 0.5], [0.3, 1.0, 0.45], [0.5, 0.45, 1.0]]
    c = dunnett_quantile(0.95, 6, matrix)
    inside = multivariate_t(shape=matrix, df=6, seed=1).cdf([c] * 3, lower_limit=[-c] * 3)
    assert 0.9499 < inside < 0.953


def launch_values(rows: Sequence[tuple[str, int, float]]) -> list[LaunchValue]:
    return [LaunchValue(*row) for row in rows]


def test_the_model_gives_the_paired_answer_for_two_variants() -> None:
    rows = [("base", 1, 80.0), ("v", 1, 90.0), ("base", 2, 84.0), ("v", 2, 92.0)]
    rows += [("base", 3, 82.0), ("v", 3, 93.0)]
    estimate = cell_estimates(launch_values(rows), "base")["v"]
    differences = [math.log(90 / 80), math.log(92 / 84), math.log(93 / 82)]
    centre = sum(differences) / 3
    deviation = math.sqrt(sum((d - centre) ** 2 for d in differences) / 2)
    assert estimate.difference == pytest.approx(centre)
    assert estimate.half_width(0.95) == pytest.approx(
        t_quantile(0.95, 2) * deviation / math.sqrt(3)
    )


def test_a_block_without_the_baseline_still_tells_about_the_noise() -> None:
    rows = [(name, block, 100.0 + block) for block in (1, 2, 3) for name in ("base", "v", "w")]
    model = fit_cell(launch_values([*rows, ("v", 4, 101.0), ("w", 4, 103.0)]), "base")
    assert model is not None
    assert (model.degrees, model.contrasts["v"].common_blocks) == (5, 3)
    assert model.residual_deviation > 0.001


def test_a_launch_alone_in_its_block_is_in_neither_mean_nor_ratio() -> None:
    text = "variant,launch,value,block\n" + "".join(
        f"{name},{block},{value},{block}\n"
        for block, value in ((1, 80), (2, 81), (3, 82))
        for name in ("a", "b")
    )
    comparison = compare(parse_csv_runs(text + "b,9,500,4\n").runs, "a")
    row = row_of(comparison.rows, "b")
    assert (row.launches, row.left_out, row.mean) == (3, 1, pytest.approx(81))
    assert any("left out" in note for note in comparison.notes)


def row_of(rows: Sequence[ComparisonRow], variant: str) -> ComparisonRow:
    [row] = [row for row in rows if row.variant == variant]
    return row


def test_a_variant_twice_in_a_block_counts_with_both_launches() -> None:
    text = (
        "variant,launch,value,block\n"
        "a,1,80,1\na,2,81,2\na,3,80.5,3\nb,1,90,1\nb,2,110,1\nb,3,91,2\nb,4,90.5,3\n"
    )
    row = row_of(compare(parse_csv_runs(text).runs, "a").rows, "b")
    assert row.launches == 4
    assert row.mean == pytest.approx((90 + 110 + 91 + 90.5) / 4)
    assert row.method == "paired"


@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-300])
def test_values_of_any_size_get_the_same_verdict(scale: float) -> None:
    text = "variant,launch,value,block\n" + "".join(
        f"{name},{block},{value * scale!r},{block}\n"
        for block in (1, 2, 3)
        for name, value in (("a", 1.0 + block / 100), ("b", 1.5 + block / 100))
    )
    row = row_of(compare(parse_csv_runs(text).runs, "a").rows, "b")
    assert row.verdict == Verdict.FASTER
    assert row.ratio == pytest.approx(1.49, abs=0.02)


def test_identical_values_are_equivalent_and_not_exact() -> None:
    rows = [(name, block, 100.0) for block in (1, 2, 3) for name in ("base", "v")]
    estimates = cell_estimates(launch_values(rows), "base")
    assert estimates["v"].half_width(0.95) > 0
    found = judge_cell(estimates, Question(0.95, 0.02), True, Outlook())
    assert found["v"].verdict == Verdict.EQUIVALENT
    assert judge_cell(estimates, Question(0.95, 0.0), True, Outlook())["v"].verdict == (
        Verdict.INCONCLUSIVE
    )


def test_two_launches_give_an_interval_and_no_verdict() -> None:
    text = "variant,launch,value\na,1,80\na,2,80.1\nb,1,160\nb,2,160.1\n"
    row = row_of(compare(parse_csv_runs(text).runs, "a").rows, "b")
    assert row.ratio_interval is not None and row.ratio_interval.low > 1
    assert row.verdict == Verdict.INCONCLUSIVE
    assert "too few" in row.reason
    assert row.needs is not None and row.needs.launches == 1


def test_the_error_is_divided_among_the_judged_cells() -> None:
    lines = [
        f"{name},{block},{value},{block},{workload}"
        for workload in ("w1", "w2")
        for block, value in ((1, 80), (2, 81), (3, 79))
        for name in ("a", "b")
    ]
    comparison = compare(
        parse_csv_runs("variant,launch,value,block,workload\n" + "\n".join(lines)).runs, "a"
    )
    assert comparison.question.cells == 2
    assert {row.confidence for row in comparison.rows if row.variant == "b"} == {0.975}


def test_a_csv_gets_a_verdict_for_every_metric_that_it_names() -> None:
    lines = [
        f"{name},{block},{value},{metric}"
        for metric, values in (("output_tok_s", (80, 81, 79)), ("ttft_s_p99", (1.0, 1.1, 0.9)))
        for block, value in enumerate(values, start=1)
        for name in ("a", "b")
    ]
    rows = compare(
        parse_csv_runs("variant,launch,value,metric\n" + "\n".join(lines)).runs, "a"
    ).rows
    assert [(row.metric, row.verdict is None) for row in rows if row.variant == "b"] == [
        ("output_tok_s", False),
        ("ttft_s_p99", False),
    ]


def test_no_variant_of_an_equal_family_wins_more_often_than_the_error() -> None:
    """Six variants without any difference, in 400 jobs: at most 5 % of them plus 3 standard
    errors may show one.
    """
    dice, wrong = random.Random(15), 0
    for _ in range(400):
        rows = [
            (f"v{variant}", block, 100 * math.exp(dice.gauss(0, 0.03)))
            for block in range(1, 6)
            for variant in range(6)
        ]
        estimates = cell_estimates(launch_values(rows), "v0")
        found = judge_cell(estimates, Question(0.95, 0.0), True, Outlook())
        wrong += any(judged.verdict != Verdict.INCONCLUSIVE for judged in found.values())
    assert wrong / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_two_calls_give_the_same_numbers() -> None:
    dice = random.Random(3)
    rows = [
        (f"v{variant}", block, 100 * math.exp(dice.gauss(0, 0.03)))
        for block in range(1, 5)
        for variant in range(24)
        if dice.random() < 0.9
    ]
    first, second = (cell_estimates(launch_values(rows), "v0") for _ in range(2))
    assert [estimate.half_width(0.95) for estimate in first.values()] == [
        estimate.half_width(0.95) for estimate in second.values()
    ]


def compared(values: Sequence[float], reference: Sequence[float], metric: str) -> object:
    lines = [
        f"{name},{block},{value},{block},{metric}"
        for name, own in (("a", reference), ("b", values))
        for block, value in enumerate(own, start=1)
    ]
    text = "variant,launch,value,block,metric\n" + "\n".join(lines)
    return compare(parse_csv_runs(text).runs, "a")


@pytest.mark.parametrize(
    ("values", "slower", "slower_3", "unproved_3"),
    [
        ([90, 90.2, 89.9], True, True, True),  # certainly 10 % slower
        (
            [97.5, 97.6, 97.4],
            True,
            False,
            False,
        ),  # certainly slower, and certainly by less than 3 %
        ([100, 100.1, 99.9], False, False, False),
        ([99, 95, 102], False, False, True),  # nothing is certain
    ],
)
@pytest.mark.parametrize("metric", ["output_tok_s", "tpot_s_mean"])
def test_a_check_fails_on_a_proved_slowdown_or_on_one_that_is_not_excluded(
    values: Sequence[float], slower: bool, slower_3: bool, unproved_3: bool, metric: str
) -> None:
    reference = [100, 100.1, 99.9]
    if metric == "tpot_s_mean":
        values, reference = [1 / value for value in values], [1 / value for value in reference]
    comparison = compared(values, reference, metric)
    failing = [
        bool(rule.failing(comparison))  # type: ignore[arg-type]
        for rule in (
            RegressionRule("slower"),
            RegressionRule("slower", 0.03),
            RegressionRule("unproved", 0.03),
        )
    ]
    assert failing == [slower, slower_3, unproved_3]


def test_more_launches_resolve_what_they_promise_and_cost_what_is_launched() -> None:
    dice = random.Random(4)
    rows = [
        (name, block, 100 * math.exp(dice.gauss(shift, 0.03)))
        for block in (1, 2, 3)
        for name, shift in (("base", 0.0), ("v", 0.02), ("w", 0.01))
    ]
    estimates = cell_estimates(launch_values(rows), "base")
    found = judge_cell(estimates, Question(), True, Outlook(minutes=10.0, variants=3))
    needs = found["v"].needs
    assert needs is not None and needs.launches_sure is not None
    assert needs.which == "blocks"  # the other row is open too
    assert needs.minutes == 3 * 10.0 * needs.launches
    assert needs.launches_sure >= needs.launches


def test_an_unknown_baseline_is_still_the_users_error() -> None:
    with pytest.raises(ConfigError, match="not a variant"):
        compare(parse_csv_runs("variant,launch,value\na,1,80\n").runs, "x")


def test_an_old_job_names_the_verdicts_that_changed_and_why() -> None:
    """Of two paired launches, method 1 made a verdict. Of three it made one that was not shared."""
    lines = [
        f"{name},{block},{value},{block}"
        for name, values in (("a", (80, 80.1)), ("b", (90, 90.1)))
        for block, value in enumerate(values, start=1)
    ]
    runs = parse_csv_runs("variant,launch,value,block\n" + "\n".join(lines)).runs
    old = compare(runs, "a", conditions=ComparisonConditions(by_method_1=True))
    assert row_of(old.rows, "b").verdict == Verdict.INCONCLUSIVE
    assert old.notes == (
        "b, output_tok_s: FASTER by the rules up to version 0.1; a verdict needs 3 launches of each "
        "side",
    )
    assert compare(runs, "a").notes == ()
