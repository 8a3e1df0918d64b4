"""Judges a row as method 1 did, up to version 0.1, so that a changed verdict can be explained."""

from __future__ import annotations

from fleet_controller.analysis.comparison_rows import Cell
from fleet_controller.analysis.comparison_values import ComparisonRow
from fleet_controller.analysis.ratio_estimates import pair_estimate, welch_estimate
from fleet_controller.analysis.verdict import (
    LAUNCHES_FOR_VERDICT,
    Question,
    Verdict,
    ratio_interval,
    verdict_on,
)
from fleet_protos.metric_names import HIGHER_IS_BETTER


def method_1_verdict(cell: Cell, variant: str, question: Question) -> Verdict:
    """Return the verdict on one row alone, from launches paired by block or from independent sets.

    Searches are not judged again: the result for them is INCONCLUSIVE.
    """
    values, references = cell.values(variant), cell.values(cell.baseline)
    if cell.is_search or not (values and references) or min(*values, *references) <= 0:
        return Verdict.INCONCLUSIVE
    ours, theirs = (
        {
            launch.block: launch.values[cell.metric]
            for launch in cell.launch_sets[name].with_metric(cell.metric)
            if launch.block > 0
        }
        for name in (variant, cell.baseline)
    )
    pairs = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
    estimate = pair_estimate(pairs) or welch_estimate(values, references)
    if estimate is None:
        return Verdict.INCONCLUSIVE
    alone = Question(question.confidence, question.margin)
    if ratio_interval(estimate, alone.confidence).is_inside(-alone.log_margin, alone.log_margin):
        return Verdict.EQUIVALENT
    return verdict_on(estimate, alone, HIGHER_IS_BETTER[cell.metric])


def changed_verdict_note(cell: Cell, row: ComparisonRow, question: Question) -> str:
    """Return a sentence if method 1 gave another verdict on the row, else an empty text."""
    if row.variant == cell.baseline or row.variant not in cell.launch_sets or cell.is_search:
        return ""
    earlier = method_1_verdict(cell, row.variant, question)
    if earlier in (row.verdict, Verdict.INCONCLUSIVE):
        return ""
    if row.verdict is None:
        why = "this metric is no longer judged"
    elif row.launches < LAUNCHES_FOR_VERDICT:
        why = f"a verdict needs {LAUNCHES_FOR_VERDICT} launches of each side"
    else:
        why = "the error is now divided among all comparisons of the job"
    place = " ".join(part for part in (row.variant, row.workload, row.host) if part)
    return f"{place}, {row.metric}: {earlier} by the rules up to version 0.1; {why}"
