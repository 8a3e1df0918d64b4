"""Owns what a comparison looks like: the verdict table, its JSON, CSV and Markdown. Decides
nothing.
"""

from __future__ import annotations

import math
from typing import Any

from fleet_controller.analysis import statistics
from fleet_controller.analysis.comparison_values import SIMULATED, Comparison, ComparisonRow
from fleet_controller.analysis.slo_limits import SloLimit
from fleet_controller.analysis.statistics import Interval
from fleet_controller.analysis.verdict import Needs, Verdict
from fleet_controller.report.table import Table, as_csv, as_markdown
from fleet_protos.metric_names import (
    HIGHER_IS_BETTER,
    HIGHEST_CONCURRENCY,
    HIGHEST_RATE,
    OUTPUT_TOK_S,
    TOK_S_PER_USER,
    TPOT_MEAN,
    TPOT_P50,
    TPOT_P99,
    TTFT_P50,
    TTFT_P99,
)

JSON_VERSION = 1

# metric → what a percentage of it is a percentage of, the unit printed, and the factor to that unit
_WORDS = {
    OUTPUT_TOK_S: ("throughput", "tok/s", 1.0),
    TOK_S_PER_USER: ("throughput per user", "tok/s", 1.0),
    TPOT_MEAN: ("time per token", "ms/token", 1e3),
    TPOT_P50: ("time per token p50", "ms/token", 1e3),
    TPOT_P99: ("time per token p99", "ms/token", 1e3),
    TTFT_P50: ("time to first token p50", "ms", 1e3),
    TTFT_P99: ("time to first token p99", "ms", 1e3),
    HIGHEST_RATE: ("highest rate", "/s", 1.0),
    HIGHEST_CONCURRENCY: ("highest concurrency", "at once", 1.0),
}


def metric_words(metric: str) -> tuple[str, str, float]:
    """(what a percentage is of, unit, factor from base unit) of a metric."""
    if HIGHER_IS_BETTER.get(metric, True):
        return _WORDS.get(metric, (metric.replace("_", " "), "", 1.0))
    return _WORDS.get(metric, (metric.replace("_s_", " time ").replace("_", " "), "ms", 1e3))


def signed_percent(ratio: float) -> str:
    """`+41.2 %` or `−29.2 %`."""
    percent = (ratio - 1) * 100
    return f"{'−' if percent < 0 else '+'}{abs(percent):.1f} %"


def change_text(metric: str, ratio: float | None) -> str:
    """`+41.2 % throughput` or `−29.2 % time per token`: a percentage always says what it is of."""
    return "" if ratio is None else f"{signed_percent(ratio)} {metric_words(metric)[0]}"


def duration_text(minutes: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _number(value: float) -> str:
    if value < 0:  # the low end of an interval over few noisy launches
        return f"−{_number(-value)}"
    return (
        f"{value:.1f}"
        if value >= 100
        else f"{value:.3g}"
        if value < 1
        else f"{value:.2f}"
        if value < 20
        else f"{value:.1f}"
    )


def _needs_text(needs: Needs | None) -> str:
    if needs is None:
        return ""
    if needs.message.startswith("more than"):
        return needs.message.partition(":")[0]
    time = "" if needs.minutes is None else f", about {duration_text(needs.minutes)}"
    return f"{needs.launches} more launch{'' if needs.launches == 1 else 'es'} of each{time}"


def _interval_text(interval: Interval | None, factor: float) -> str:
    if interval is None:
        return ""
    low, high = interval.low * factor, interval.high * factor
    if math.isinf(high):
        return f"≥ {_number(low)}" if low > 0 else "open"
    return f"{_number(low)} … {_number(high)}" if low else f"≤ {_number(high)}"


def _change_interval_text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if math.isinf(interval.high):
        return f"≥ {signed_percent(interval.low)}" if interval.low > 0 else "open"
    return (
        f"{signed_percent(interval.low)} … {signed_percent(interval.high)}"
        if interval.low
        else f"≤ {signed_percent(interval.high)}"
    )


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    _, unit, factor = metric_words(row.metric)
    mean = _bound_text(row) if row.mean is None else f"{_number(row.mean * factor)} {unit}".rstrip()
    verdict = "baseline" if row.verdict is None else str(row.verdict)
    change = "" if row.verdict is None else change_text(row.metric, row.ratio)
    accept = "" if row.accept_length is None else f"{row.accept_length:.2f}"
    return (
        row.host, row.workload, row.variant, str(row.launches), str(row.runs), mean, _interval_text(row.interval, factor),
        change, _change_interval_text(row.ratio_interval), verdict, _needs_text(row.needs), accept,
    )  # fmt: skip


def _bound_text(row: ComparisonRow) -> str:
    """The bound that the launches of a search give where their limits lie beyond the loads
    searched.
    """
    unit = metric_words(row.metric)[1]
    if row.limits and all(limit.met for limit in row.limits):
        return f"≥ {_number(statistics.mean([limit.met for limit in row.limits]))} {unit}"
    if row.limits and not any(math.isinf(limit.not_met) for limit in row.limits):
        return f"< {_number(statistics.mean([limit.not_met for limit in row.limits]))} {unit}"
    return "open" if row.limits else ""


def comparison_table(comparison: Comparison) -> Table:
    """The verdict table; columns that hold nothing in any row are left out, and the host when there
    is only one.
    """
    confidence_text = f"{comparison.question.confidence * 100:g} %"
    columns = (
        "host", "workload", "variant", "launches", "runs", "mean", f"{confidence_text} interval",
        "against baseline", f"{confidence_text} interval of it", "verdict", "needs", "accept length",
    )  # fmt: skip
    rows = tuple(_cells(row) for row in comparison.rows)
    if len({row.host for row in comparison.rows}) < 2:
        rows = tuple(("", *row[1:]) for row in rows)
    numbers = frozenset(
        {"launches", "runs", "mean", columns[6], "against baseline", columns[8], "accept length"}
    )
    return Table(columns, rows, numbers).without_empty(
        "host", "workload", columns[6], columns[8], "needs", "accept length"
    )


def comparison_heading(comparison: Comparison) -> str:
    """One line: job, engine with its time scale, baseline, confidence and margin."""
    engine = (
        f"simulated ×{comparison.time_scale:g}"
        if comparison.engine == SIMULATED
        else comparison.engine
    )
    named = [
        f"job {comparison.job}" if comparison.job else "",
        engine,
        f"baseline {comparison.baseline}",
    ]
    named.append(
        f"confidence {comparison.question.confidence * 100:g} %, margin ±{comparison.question.margin * 100:g} %"
    )
    return " · ".join(part for part in named if part)


def comparison_remarks(comparison: Comparison) -> list[str]:
    """What the table cannot hold: notes, why a row is INCONCLUSIVE, and each gate with its count."""
    reasons: dict[str, dict[str, int]] = {}
    several = {(_place(row), _reason(row)) for row in comparison.rows}
    gates: dict[str, dict[str, int]] = {}
    messages: dict[str, str] = {}  # the first of each gate: they differ in their figures
    for row in comparison.rows:
        place = _place(row)
        if row.verdict == Verdict.INCONCLUSIVE or (row.mean is None and row.reason):
            differs = (
                len([reason for at, reason in several if at == place]) > 1
            )  # the metrics of one place have reasons of their own
            reasons.setdefault(_reason(row), {})[
                f"{place}, {metric_words(row.metric)[0]}" if differs else place
            ] = 0
        for gate in row.gates:
            message = messages.setdefault(gate.code, f"gate {gate.code}: {gate.message}")
            gates.setdefault(message, {})[place] = (
                gate.count
            )  # once: a row's metrics share its runs
    everywhere = len({_place(row) for row in comparison.rows})
    grouped_lines = [
        f"{text} ({_places(places, everywhere)})" for text, places in (reasons | gates).items()
    ]
    return [*comparison.notes, *grouped_lines]


def _place(row: ComparisonRow) -> str:
    return " ".join(
        part for part in (row.variant, row.workload, f"on {row.host}" if row.host else "") if part
    )


def _reason(row: ComparisonRow) -> str:
    return f"{row.verdict or 'baseline'}: {_reason_and_needs(row)}"


def _reason_and_needs(row: ComparisonRow) -> str:
    needs = _needs_text(row.needs)
    message = row.needs.message if row.needs else ""
    return "; ".join(
        part
        for part in (
            row.reason,
            message,
            f"needs {needs}" if needs and needs not in message else "",
        )
        if part
    )


def _places(places: dict[str, int], everywhere: int) -> str:
    total = sum(places.values())
    runs = f"{total} run{'' if total == 1 else 's'}" if total else ""
    if len(places) > 2:
        where = (
            "everywhere"
            if len(places) == everywhere
            else f"in {len(places)} of {everywhere} places, first {next(iter(places))}"
        )
        return ", ".join(part for part in (runs, where) if part)
    return ", ".join(f"{place} ×{count}" if count else place for place, count in places.items())


def comparison_sections(comparison: Comparison) -> list[tuple[str, Table]]:
    """The verdict table cut by host, workload and metric, each with its heading; what a row needs
    is left to the remarks.
    """
    confidence_text = f"{comparison.question.confidence * 100:g} %"
    columns = (
        "variant",
        "n",
        "mean",
        f"{confidence_text} interval",
        "against baseline",
        f"{confidence_text} of it",
        "verdict",
        "accept",
    )
    grouped: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
    for row in comparison.rows:
        cells = _cells(row)
        kept = (cells[2], cells[3], *cells[5:10], cells[11])
        grouped.setdefault((row.host, row.workload, row.metric), []).append(kept)
    numbers = frozenset({"n", "mean", columns[3], "against baseline", columns[5], "accept"})
    tables = {
        key: Table(columns, tuple(rows), numbers).without_empty(columns[3], columns[5], "accept")
        for key, rows in grouped.items()
    }
    return [
        (" · ".join(part for part in (*key[:2], metric_words(key[2])[0]) if part), table)
        for key, table in tables.items()
    ]


def comparison_narrow_lines(comparison: Comparison) -> list[str]:
    """The same in short lines for a narrow terminal: a variant and workload, then two lines for
    each metric.
    """
    grouped: dict[str, list[str]] = {}
    for row in comparison.rows:
        title = " · ".join(part for part in (row.variant, row.workload, row.host) if part)
        grouped.setdefault(title, []).extend(_narrow_row(row))
    return [line for title, lines in grouped.items() for line in ("", title, *lines)][1:]


def _narrow_row(row: ComparisonRow) -> list[str]:
    _, _, _, launches, runs, mean, interval, change, change_interval, verdict, needs, accept = (
        _cells(row)
    )
    counts = f"{launches} launch{'' if launches == '1' else 'es'}, {runs} run{'' if runs == '1' else 's'}"
    span, change_span = (f" ({text})" if text else "" for text in (interval, change_interval))
    first = f"  {mean or 'no mean'}{span} · {counts}" + (
        f" · accept length {accept}" if accept else ""
    )
    judged = "  ".join(part for part in (f"{change}{change_span}", verdict) if part)
    return [first, f"    {judged}", *([f"    needs {needs}"] if needs else [])]


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The `compare` contract of docs/json.md."""
    return {
        "version": JSON_VERSION,
        "job": comparison.job,
        "engine": comparison.engine,
        "time_scale": comparison.time_scale,
        "baseline": comparison.baseline,
        "confidence": comparison.question.confidence,
        "margin": comparison.question.margin,
        "notes": list(comparison.notes),
        "rows": [_row_json(row) for row in comparison.rows],
    }


def _row_json(row: ComparisonRow) -> dict[str, Any]:
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
        "needs": None
        if row.needs is None
        else {"launches": row.needs.launches, "minutes": row.needs.minutes},
        "gates": [
            {
                "code": gate.code,
                "count": gate.count,
                "message": gate.message,
                "reasons": list(gate.reasons),
            }
            for gate in row.gates
        ],
        "reason": row.reason,
        "accept_length": row.accept_length,
        "limits": [limit_json(limit) for limit in row.limits],
    }


def limit_json(limit: SloLimit) -> dict[str, Any]:
    """What the search of one launch found; null for a load that is not known."""
    return {
        "trial": limit.trial_id,
        "met": limit.met or None,
        "not_met": _end(limit.not_met),
        "ended": limit.ended,
    }


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.low, _end(interval.high)]


def _end(value: float) -> float | None:
    """None: open to that side."""
    return None if math.isinf(value) else value


def comparison_csv(comparison: Comparison) -> str:
    """One row per row, numbers unrounded in base units; engine and time scale on every line, so
    that no line travels without them.
    """
    ends = ("interval", "ratio_interval")
    columns = (
        "job", "engine", "time_scale", "baseline", "variant", "host", "workload", "metric", "launches", "runs", "mean", "interval_low",
        "interval_high", "ratio", "ratio_low", "ratio_high", "verdict", "needs_launches", "needs_minutes", "accept_length",
    )  # fmt: skip
    rows = []
    for row in comparison.rows:
        values = _row_json(row)
        low_high = [end for name in ends for end in (values[name] or [None, None])]
        needs = values["needs"] or {"launches": None, "minutes": None}
        shared = (comparison.job, comparison.engine, comparison.time_scale, comparison.baseline)
        cells = (
            *shared, row.variant, row.host, row.workload, row.metric, row.launches, row.runs, row.mean, *low_high[:2],
            row.ratio, *low_high[2:], values["verdict"], *needs.values(), row.accept_length,
        )  # fmt: skip
        rows.append(tuple("" if cell is None else str(cell) for cell in cells))
    return as_csv(Table(columns, tuple(rows)))


def comparison_markdown(comparison: Comparison) -> str:
    """Heading, pipe table and remarks, to paste into a pull request."""
    remarks = "".join(f"- {line}\n" for line in comparison_remarks(comparison))
    return (
        f"**{comparison_heading(comparison)}**\n\n{as_markdown(comparison_table(comparison))}"
        + (f"\n{remarks}" if remarks else "")
    )
