"""Writes a comparison as JSON, CSV or Markdown."""

from __future__ import annotations

import math
from typing import Any

from fleet_controller.analysis.comparison_values import Comparison, ComparisonRow
from fleet_controller.analysis.slo_limits import SloLimit
from fleet_controller.analysis.statistics import Interval
from fleet_controller.analysis.verdict import RULE, Needs, Question
from fleet_controller.report.comparison_output import (
    comparison_heading,
    comparison_remarks,
    comparison_table,
)
from fleet_controller.report.table import Table, as_csv, as_markdown

JSON_VERSION = 1


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON of the `compare` contract in docs/json.md."""
    return {
        "version": JSON_VERSION,
        "job": comparison.job,
        "engine": comparison.engine,
        "time_scale": comparison.time_scale,
        "baseline": comparison.baseline,
        "confidence": comparison.question.confidence,
        "margin": comparison.question.margin,
        "method": RULE,
        "notes": list(comparison.notes),
        "rows": [_row_json(row, comparison.question) for row in comparison.rows],
    }


def _row_json(row: ComparisonRow, question: Question) -> dict[str, Any]:
    return {
        "variant": row.variant,
        "host": row.host,
        "workload": row.workload,
        "metric": row.metric,
        "launches": row.launches,
        "runs": row.runs,
        "mean": row.mean,
        "interval": _ends(row.interval),
        "ratio": row.ratio,
        "ratio_interval": _ends(row.ratio_interval),
        "verdict": None if row.verdict is None else str(row.verdict),
        "needs": None if row.needs is None else _needs_json(row.needs),
        "gates": [
            {
                "code": gate.code,
                "count": gate.count,
                "message": gate.message,
                "reasons": list(gate.reasons),
                "voided": gate.voided,
            }
            for gate in row.gates
        ],
        "reason": row.reason,
        "accept_length": row.accept_length,
        "limits": [limit_json(limit) for limit in row.limits],
        "ratio_of_means": row.ratio_of_means,
        "judged": row.is_judged,
        "half": row.half,
        "confidence": row.confidence,
        "family": question.cells,
        "looks": question.looks,
        "residual_sd": row.residual_sd,
        "df": row.degrees,
        "left_out": row.left_out,
    }


def _needs_json(needs: Needs) -> dict[str, Any]:
    return {
        "launches": needs.launches,
        "launches_80": needs.launches,
        "launches_sure": needs.launches_sure,
        "minutes": needs.minutes,
        "which": needs.which,
    }


def limit_json(limit: SloLimit) -> dict[str, Any]:
    """Return what the search of one launch found. None means an unknown load."""
    return {
        "trial": limit.trial_id,
        "met": limit.met or None,
        "not_met": _end(limit.not_met),
        "ended": limit.ended,
    }


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.low, _end(interval.high)]


def _end(value: float) -> float | None:
    """Return the end of an interval, or None when it is open."""
    return None if math.isinf(value) else value


def comparison_csv(comparison: Comparison) -> str:
    """Return CSV with unrounded numbers in base units. Every line names the engine and the time
    scale.
    """
    ends = ("interval", "ratio_interval")
    columns = (
        "job",
        "engine",
        "time_scale",
        "baseline",
        "variant",
        "host",
        "workload",
        "metric",
        "launches",
        "runs",
        "mean",
        "interval_low",
        "interval_high",
        "ratio",
        "ratio_low",
        "ratio_high",
        "verdict",
        "needs_launches",
        "needs_minutes",
        "accept_length",
    )
    rows = []
    for row in comparison.rows:
        values = _row_json(row, comparison.question)
        low_high = [end for name in ends for end in (values[name] or [None, None])]
        needs = values["needs"] or {}
        shared = (comparison.job, comparison.engine, comparison.time_scale, comparison.baseline)
        cells = (
            *shared,
            row.variant,
            row.host,
            row.workload,
            row.metric,
            row.launches,
            row.runs,
            row.mean,
            *low_high[:2],
            row.ratio,
            *low_high[2:],
            values["verdict"],
            needs.get("launches"),
            needs.get("minutes"),
            row.accept_length,
        )
        rows.append(tuple("" if cell is None else str(cell) for cell in cells))
    return as_csv(Table(columns, tuple(rows)))


def comparison_markdown(comparison: Comparison) -> str:
    """Return heading, table and remarks as Markdown, for example for a pull request."""
    remarks = "".join(f"- {line}\n" for line in comparison_remarks(comparison))
    return (
        f"**{comparison_heading(comparison)}**\n\n{as_markdown(comparison_table(comparison))}"
        + (f"\n{remarks}" if remarks else "")
    )
