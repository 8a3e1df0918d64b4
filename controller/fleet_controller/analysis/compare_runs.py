"""Compares the variants of one job, or of a CSV file, with their baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fleet_controller.analysis.comparison_rows import (
    Cell,
    LaunchSet,
    RowSettings,
    cell_rows,
)
from fleet_controller.analysis.comparison_values import (
    EXTERNAL,
    SIMULATED,
    Comparison,
    ComparisonConditions,
    ComparisonRow,
)
from fleet_controller.analysis.earlier_method import changed_verdict_note
from fleet_controller.analysis.launches import (
    group_launches,
    minutes_per_launch,
    without_warm_up,
)
from fleet_controller.analysis.slo_limits import (
    METRIC_OF,
    finished_limits,
    is_searched,
    open_notes,
)
from fleet_controller.analysis.verdict import Question
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.errors import ConfigError
from fleet_protos.metric_names import HIGHER_IS_BETTER, OUTPUT_TOK_S, TPOT_MEAN

SHOWN = (OUTPUT_TOK_S, TPOT_MEAN)  # in every comparison of a job
METRICS_ALL = tuple(HIGHER_IS_BETTER)
NOT_STEADY = "not_steady"  # the gate of a launch that never became steady
_PLACES_NAMED = 3


def compare(
    runs: Sequence[StoredRun],
    baseline: str,
    confidence: float = 0.95,
    margin: float = 0.02,
    conditions: ComparisonConditions | None = None,
) -> Comparison:
    """Compare every variant with `baseline` on the same host.

    Raises ConfigError if the baseline is not among the variants. Raises ConfigError if confidence
    or margin is out of range.
    """
    conditions = conditions or ComparisonConditions()
    check_question(confidence, margin)
    variants = unique_names(
        [variant for variant, _ in conditions.planned], [stored.variant for stored in runs]
    )
    if variants and baseline not in variants:
        known = ", ".join(variants)
        raise ConfigError(
            f"baseline {baseline!r} is not a variant of this job",
            f"use one of these variants: {known}",
        )
    variants.sort(key=lambda variant: variant != baseline)
    sets = launch_sets(runs)
    cells = [
        Cell(
            host,
            workload,
            metric,
            baseline,
            {
                variant: sets.get((variant, host, workload), LaunchSet())
                for variant in variants
                if (variant, host, workload) in sets or (variant, host) in conditions.planned
            },
            is_judged,
        )
        for host, workload, metric, is_judged in cell_keys(runs, conditions)
    ]
    settings = RowSettings(
        Question(confidence, margin, judged_count(cells)),
        conditions.engine,
        minutes_per_launch(runs),
        conditions.failures,
    )
    rows = [(cell, row) for cell in cells for row in cell_rows(cell, settings)]
    question = settings.question
    compared = make_comparison(conditions, baseline, question, [row for _, row in rows])
    if not conditions.by_method_1:
        return compared
    changed = (changed_verdict_note(cell, row, question) for cell, row in rows)
    return replace(compared, notes=(*compared.notes, *filter(None, changed)))


def judged_count(cells: Iterable[Cell]) -> int:
    """Return the number of cells whose rows get a verdict, at least 1."""
    return max(sum(cell.is_judged and len(cell.launch_sets) > 1 for cell in cells), 1)


def check_question(confidence: float, margin: float) -> None:
    """Raise ConfigError for a confidence or margin out of range."""
    if not 0 < confidence < 1:
        raise ConfigError(
            f"confidence {confidence:g} is not between 0 and 1", "write a value such as 95%"
        )
    if not 0 <= margin < 1:
        raise ConfigError(f"margin {margin:g} is not between 0 and 1", "write a value such as 2%")


def unique_names(*names: Iterable[str]) -> list[str]:
    """Return all names once, in the order first seen."""
    return list(dict.fromkeys(name for part in names for name in part))


def launch_sets(runs: Sequence[StoredRun]) -> dict[tuple[str, str, str], LaunchSet]:
    """Return (variant, host, workload) -> its launches that count."""
    members: dict[tuple[str, str, str], list[StoredRun]] = {}
    for stored in without_warm_up(runs):
        members.setdefault((stored.variant, stored.host, stored.run.workload), []).append(stored)
    return {
        key: LaunchSet(
            tuple(group_launches(group, METRICS_ALL)), tuple(group), tuple(finished_limits(group))
        )
        for key, group in members.items()
    }


def cell_keys(
    runs: Sequence[StoredRun], conditions: ComparisonConditions
) -> list[tuple[str, str, str, bool]]:
    """Return (host, workload, metric, whether it is judged) of each cell, in the order of rows."""
    hosts = unique_names([host for _, host in conditions.planned], [stored.host for stored in runs])
    workloads = unique_names(
        conditions.workloads if runs else (), [stored.run.workload for stored in runs]
    )
    measured = {metric for stored in runs for metric in stored.run.metrics} & set(METRICS_ALL)
    searches = {
        stored.run.workload: stored.run.searched.of for stored in runs if is_searched(stored)
    } | dict(conditions.searches)
    return [
        (host, workload, metric, is_judged)
        for host in hosts
        for workload in workloads
        for metric, is_judged in _workload_metrics(
            searches.get(workload, ""), conditions.judged.get(workload), measured
        ).items()
    ]


def _workload_metrics(
    search: str, judged: Sequence[str] | None, measured: set[str]
) -> Mapping[str, bool]:
    """Return metric -> whether it is judged. Without a choice, all that was measured is judged."""
    if search in METRIC_OF:
        return {METRIC_OF[search]: True}
    if judged is None:
        return dict.fromkeys((metric for metric in METRICS_ALL if metric in measured), True)
    shown = [metric for metric in SHOWN if metric in measured or not measured]
    return dict.fromkeys((metric for metric in judged), True) | {
        metric: metric in judged for metric in shown
    }


def make_comparison(
    conditions: ComparisonConditions, baseline: str, question: Question, rows: list[ComparisonRow]
) -> Comparison:
    """Return the comparison with the notes that apply to all its rows."""
    notes = []
    if conditions.engine == SIMULATED:
        notes.append(
            f"simulated ×{conditions.time_scale:g}: a model of time, not a measurement of hardware"
        )
    if conditions.engine == EXTERNAL:
        notes.append("external server: no verdict is possible without launches")
    notes += _unsteady_notes(rows)
    notes += [note for row in rows for note in open_notes(row.limits)]
    notes += _left_out_notes(rows)
    if not rows:
        notes.append("no finished run yet")
    return Comparison(
        conditions.job,
        conditions.engine,
        conditions.time_scale,
        baseline,
        question,
        tuple(rows),
        tuple(notes),
    )


def _left_out_notes(rows: list[ComparisonRow]) -> list[str]:
    """Return a note on launches that are in neither mean nor ratio."""
    return unique_names(
        f"{row.left_out} launch{'' if row.left_out == 1 else 'es'} of {row.variant} left out: no "
        "other variant was launched in the same block"
        for row in rows
        if row.left_out
    )


def _unsteady_notes(rows: list[ComparisonRow]) -> list[str]:
    """Return a note that names launches without a steady state, because verdicts rest on these
    launches.
    """
    unsteady = [row for row in rows if any(gate.code == NOT_STEADY for gate in row.gates)]
    places = unique_names(
        [f"{row.variant} {row.workload}{f' on {row.host}' if row.host else ''}" for row in unsteady]
    )
    if not places:
        return []
    more = f" and {len(places) - _PLACES_NAMED} more" if len(places) > _PLACES_NAMED else ""
    named = ", ".join(places[:_PLACES_NAMED])
    return [(f"no steady state in {named}{more}: its mean mixes different speeds or a drift")]
