"""Judges all variants of one cell against its baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from fleet_controller.analysis.ratio_estimates import RatioEstimate
from fleet_controller.analysis.verdict import (
    CLOSED,
    Judgement,
    OpenEnds,
    Outlook,
    Question,
    Verdict,
    judge_ratio,
    ratio_interval,
    verdict_on,
)


def judge_cell(
    estimates: Mapping[str, RatioEstimate],
    question: Question,
    higher_is_better: bool,
    outlook: Outlook,
    ends: Mapping[str, OpenEnds] | None = None,
    *,
    with_needs: bool = True,
) -> dict[str, Judgement]:
    """Return the judgement of each estimate. Without `with_needs`, it does not say what would
    resolve a row, which takes most of the time.

    A row that is INCONCLUSIVE asks for whole blocks if another row does too.
    """
    ends = ends or {}
    equivalent = _equivalent_rows(estimates, question, ends)
    verdicts = {
        variant: Verdict.EQUIVALENT
        if variant in equivalent
        else verdict_on(estimate, question, higher_is_better, ends.get(variant, CLOSED))
        for variant, estimate in estimates.items()
    }
    if not with_needs:
        return {variant: Judgement(verdict, "") for variant, verdict in verdicts.items()}
    unresolved = [name for name, verdict in verdicts.items() if verdict is Verdict.INCONCLUSIVE]
    outlook = replace(outlook, in_blocks=len(unresolved) > 1)
    return {
        variant: judge_ratio(
            estimate, verdicts[variant], question, outlook, ends.get(variant, CLOSED)
        )
        for variant, estimate in estimates.items()
    }


def _equivalent_rows(
    estimates: Mapping[str, RatioEstimate], question: Question, ends: Mapping[str, OpenEnds]
) -> Collection[str]:
    """Return the variants that are equivalent to the baseline.

    This is a step-down procedure: what was found equivalent no longer shares the error with the
    rest, so the others are tested again with the larger share. The probability of any false
    result stays the same (Marcus, Peritz and Gabriel, Biometrika 63, 1976).
    """
    remaining, found = set(estimates), set[str]()
    while True:
        new = {
            variant
            for variant in remaining
            if ratio_interval(
                estimates[variant].among(remaining),
                question.row_confidence,
                ends.get(variant, CLOSED),
                one_sided=True,
            ).is_inside(-question.log_margin, question.log_margin)
        }
        if not new:
            return found
        found |= new
        remaining -= new
