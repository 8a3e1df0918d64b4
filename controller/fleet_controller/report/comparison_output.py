"""Formats a comparison for people: the verdict table, its heading and its remarks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fleet_controller.analysis import statistics
from fleet_controller.analysis.comparison_values import SIMULATED, Comparison, ComparisonRow
from fleet_controller.analysis.launches import GateCount
from fleet_controller.analysis.statistics import Interval
from fleet_controller.analysis.verdict import Needs, Verdict
from fleet_controller.report.table import Table
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

_VISIBLE = 0.01  # from here on a ratio visibly differs from that of the means
# metric → (what a percentage refers to, the printed unit, the factor from the base unit)
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
    """Return three values for a metric: what a percentage of it refers to, its unit, and the factor
    from the base unit.
    """
    if HIGHER_IS_BETTER.get(metric, True):
        return _WORDS.get(metric, (metric.replace("_", " "), "", 1.0))
    return _WORDS.get(metric, (metric.replace("_s_", " time ").replace("_", " "), "ms", 1e3))


def signed_percent(ratio: float) -> str:
    """Format a ratio as a change: `+41.2 %` or `−29.2 %`."""
    percent = (ratio - 1) * 100
    return f"{'−' if percent < 0 else '+'}{abs(percent):.1f} %"


def change_text(metric: str, ratio: float | None) -> str:
    """Format a ratio with what it refers to: `+41.2 % throughput` or `−29.2 % time per token`."""
    return "" if ratio is None else f"{signed_percent(ratio)} {metric_words(metric)[0]}"


def duration_text(minutes: float) -> str:
    """Format minutes as `40 s`, `12 min` or `3.5 h`."""
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _number(value: float) -> str:
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


def _interval_text(interval: Interval | None, factor: float, is_open_below: bool = False) -> str:
    if interval is None:
        return ""
    low, high = interval.low * factor, interval.high * factor
    if math.isinf(high):
        return f"≥ {_number(low)}" if low > 0 else "open"
    return f"≤ {_number(high)}" if is_open_below else f"{_number(low)} … {_number(high)}"


def _change_interval_text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if math.isinf(interval.high):
        return f"≥ {_change_end(interval.low)}" if interval.low > 0 else "open"
    return (
        f"{_change_end(interval.low)} … {_change_end(interval.high)}"
        if interval.low
        else f"≤ {_change_end(interval.high)}"
    )


def _change_end(ratio: float) -> str:
    """Format an end of a ratio's interval: `+41.2 %`, or `×2.5` and `÷2.5` beyond a factor of 2."""
    if 0.5 <= ratio <= 2 or not ratio:
        return signed_percent(ratio)
    factor = max(ratio, 1 / ratio)
    return f"{'×' if ratio > 1 else '÷'}{factor:{'.0f' if factor >= 20 else '.2g'}}"


def _cells(row: ComparisonRow, baseline: str) -> tuple[str, ...]:
    _, unit, factor = metric_words(row.metric)
    mean = _bound_text(row) if row.mean is None else f"{_number(row.mean * factor)} {unit}".rstrip()
    is_baseline = row.variant == baseline
    verdict = str(row.verdict or ("baseline" if is_baseline else "not judged"))
    change = "" if is_baseline else change_text(row.metric, row.ratio)
    accept = "" if row.accept_length is None else f"{row.accept_length:.2f}"
    return (
        row.host,
        row.workload,
        row.variant,
        str(row.launches),
        str(row.runs),
        mean,
        _interval_text(row.interval, factor, any(not limit.met for limit in row.limits)),
        change,
        _change_interval_text(row.ratio_interval),
        verdict,
        _needs_text(row.needs),
        accept,
    )


def _bound_text(row: ComparisonRow) -> str:
    """Format the known bound of a search's limit, such as `≥ 12 /s`, if the limit is outside the
    loads that were searched.
    """
    unit = metric_words(row.metric)[1]
    if row.limits and all(limit.met for limit in row.limits):
        return f"≥ {_number(statistics.mean([limit.met for limit in row.limits]))} {unit}"
    if row.limits and not any(math.isinf(limit.not_met) for limit in row.limits):
        return f"< {_number(statistics.mean([limit.not_met for limit in row.limits]))} {unit}"
    return "open" if row.limits else ""


def comparison_table(comparison: Comparison) -> Table:
    """Return the verdict table without empty columns, and without the host if there is only one."""
    confidence_text = f"{comparison.question.confidence * 100:g} %"
    columns = (
        "host",
        "workload",
        "variant",
        "launches",
        "runs",
        "mean",
        f"{confidence_text} interval",
        "against baseline",
        f"{confidence_text} interval of it",
        "verdict",
        "needs",
        "accept length",
    )
    rows = tuple(_cells(row, comparison.baseline) for row in comparison.rows)
    if len({row.host for row in comparison.rows}) < 2:
        rows = tuple(("", *row[1:]) for row in rows)
    numbers = frozenset(
        {"launches", "runs", "mean", columns[6], "against baseline", columns[8], "accept length"}
    )
    return Table(columns, rows, numbers).without_empty(
        "host", "workload", columns[6], columns[8], "needs", "accept length"
    )


def comparison_heading(comparison: Comparison) -> str:
    """Return one line with job, engine and time scale, baseline, confidence and margin."""
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
    confidence, margin = comparison.question.confidence, comparison.question.margin
    cells = comparison.question.cells
    for_all = f" for all {cells} comparisons" if cells > 1 else ""
    named.append(f"confidence {confidence * 100:g} %{for_all}, margin ±{margin * 100:g} %")
    return " · ".join(part for part in named if part)


def comparison_remarks(comparison: Comparison) -> list[str]:
    """Return the notes, the reasons of INCONCLUSIVE rows, and each gate with its count."""
    reasons: dict[str, dict[str, int]] = {}
    several = {(row_place(row), _reason(row)) for row in comparison.rows}
    gates: dict[str, dict[str, int]] = {}
    messages: dict[str, str] = {}  # the first message of each gate; others differ in numbers only
    for row in comparison.rows:
        place = row_place(row)
        if row.verdict == Verdict.INCONCLUSIVE or (row.mean is None and row.reason):
            differs = len([reason for at, reason in several if at == place]) > 1
            name = f"{place}, {metric_words(row.metric)[0]}" if differs else place
            reasons.setdefault(_reason(row), {})[name] = 0
        for gate in row.gates:
            message = messages.setdefault(gate.code, f"{_effect_text(gate)}: {gate.message}")
            # Set, not added: the metrics of one place share their runs.
            gates.setdefault(message, {})[place] = gate.count
    everywhere = len({row_place(row) for row in comparison.rows})
    grouped_lines = [
        f"{text} ({_places(places, everywhere)})" for text, places in (reasons | gates).items()
    ]
    return [*comparison.notes, *_ratio_lines(comparison.rows), *grouped_lines]


def _effect_text(gate: GateCount) -> str:
    """Say what the gate did: voided runs, which count nowhere, or flagged runs, which count."""
    if gate.voided == gate.count:
        return f"void by {gate.code}"
    return f"flag {gate.code}" if not gate.voided else f"flag, or void, by {gate.code}"


def _ratio_lines(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return a sentence for each ratio that visibly differs from that of the printed means."""
    return [
        f"{row_place(row)}: {change_text(row.metric, row.ratio)} is the geometric mean of the"
        f" ratios of {'the blocks' if row.method == 'paired' else 'the launches'}; the two means"
        f" are {signed_percent(row.ratio_of_means)} apart, as one extreme launch moves them more"
        for row in rows
        if row.ratio and row.ratio_of_means and abs(row.ratio_of_means / row.ratio - 1) >= _VISIBLE
    ]


def row_place(row: ComparisonRow) -> str:
    """Return variant, workload and host of a row."""
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
        count, first = len(places), next(iter(places))
        where = (
            "everywhere"
            if count == everywhere
            else f"in {count} of {everywhere} places, first in {first}"
        )
        return ", ".join(part for part in (runs, where) if part)
    return ", ".join(f"{place} ×{count}" if count else place for place, count in places.items())


def comparison_sections(comparison: Comparison) -> list[tuple[str, Table]]:
    """Return a heading and a table for each host, workload and metric.

    These tables have no column for what a row needs, because the remarks contain it.
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
        cells = _cells(row, comparison.baseline)
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
    """Return short lines for a narrow terminal: a line with variant and workload, then two lines
    for each metric.
    """
    grouped: dict[str, list[str]] = {}
    for row in comparison.rows:
        title = " · ".join(part for part in (row.variant, row.workload, row.host) if part)
        grouped.setdefault(title, []).extend(_narrow_row(row, comparison.baseline))
    return [line for title, lines in grouped.items() for line in ("", title, *lines)][1:]


def _narrow_row(row: ComparisonRow, baseline: str) -> list[str]:
    _, _, _, launches, runs, mean, interval, change, change_interval, verdict, needs, accept = (
        _cells(row, baseline)
    )
    counts = (
        f"{launches} launch{'' if launches == '1' else 'es'},"
        f" {runs} run{'' if runs == '1' else 's'}"
    )
    span, change_span = (f" ({text})" if text else "" for text in (interval, change_interval))
    first = f"  {mean or 'no mean'}{span} · {counts}" + (
        f" · accept length {accept}" if accept else ""
    )
    judged = "  ".join(part for part in (f"{change}{change_span}", verdict) if part)
    return [first, f"    {judged}", *([f"    needs {needs}"] if needs else [])]
