"""Owns the comparison: which launches meet which, row by row. Reads no store, prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet_controller.analysis.comparison_rows import LaunchSet, RowSettings, judge_row, make_row
from fleet_controller.analysis.comparison_values import (
    EXTERNAL,
    SIMULATED,
    Comparison,
    ComparisonConditions,
    ComparisonRow,
)
from fleet_controller.analysis.launches import (
    launches_of,
    minutes_per_launch,
    without_warm_up,
)
from fleet_controller.analysis.slo_limits import (
    METRIC_OF,
    finished_limits,
    is_searched,
    open_notes,
)
from fleet_controller.analysis.verdict import (
    Question,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.errors import ConfigError
from fleet_protos.metric_names import HIGHER_IS_BETTER, OUTPUT_TOK_S, TPOT_MEAN

METRICS = (OUTPUT_TOK_S, TPOT_MEAN)
NOT_STEADY = "not_steady"  # the gate of a launch that never became steady
_PLACES_NAMED = 3


def compare(
    runs: Sequence[StoredRun],
    baseline: str,
    confidence: float = 0.95,
    margin: float = 0.02,
    conditions: ComparisonConditions | None = None,
) -> Comparison:
    """Every variant against `baseline` on the same host, paired by block where two blocks hold
    both.

    Raises ConfigError for a baseline that is not among the variants, or a confidence or margin out
    of range.
    """
    conditions = conditions or ComparisonConditions()
    settings = RowSettings(
        _question(confidence, margin),
        conditions.engine,
        minutes_per_launch(runs),
        True,
        conditions.failures,
    )
    variants = _first_seen(
        [variant for variant, _ in conditions.planned], [stored.variant for stored in runs]
    )
    if variants and baseline not in variants:
        raise ConfigError(
            f"baseline {baseline!r} is not a variant of this job", f"one of: {', '.join(variants)}"
        )
    variants.sort(key=lambda variant: variant != baseline)
    sides = _sides(runs)
    rows = []
    for host, workload, metric in _cells(runs, conditions):
        reference = sides.get((baseline, host, workload), LaunchSet((), ()))
        for variant in variants:
            if (variant, host, workload) in sides or (variant, host) in conditions.planned:
                side = sides.get((variant, host, workload), LaunchSet((), ()))
                row = make_row((variant, host, workload, metric), side, settings)
                rows.append(
                    row
                    if variant == baseline
                    else judge_row(row, side, reference, settings, baseline)
                )
    return _comparison(conditions, baseline, settings.question, rows)


def compare_jobs(
    before: tuple[ComparisonConditions, Sequence[StoredRun]],
    after: tuple[ComparisonConditions, Sequence[StoredRun]],
    confidence: float,
    margin: float,
) -> Comparison:
    """Each variant of `after` against the one of the same name, host and workload in `before`,
    unpaired.

    Raises ConfigError when one is simulated and the other is not: such a ratio would mean nothing.
    """
    (old, old_runs), (new, new_runs) = before, after
    if (old.engine == SIMULATED) != (new.engine == SIMULATED):
        raise ConfigError(
            f"job {old.job} ran on engine {old.engine}, job {new.job} on {new.engine}: simulated and real are never compared",
            "compare two jobs that ran on the same kind of engine",
        )
    external = EXTERNAL if EXTERNAL in (old.engine, new.engine) else new.engine
    settings = RowSettings(
        _question(confidence, margin), external, minutes_per_launch(new_runs), False, new.failures
    )
    old_sides, new_sides = _sides(old_runs), _sides(new_runs)
    rows = []
    for host, workload, metric in _cells(new_runs, new):
        for variant in _first_seen(
            [variant for variant, _ in new.planned], [stored.variant for stored in new_runs]
        ):
            key = (variant, host, workload)
            if key in new_sides:
                side = new_sides[key]
                rows.append(
                    judge_row(
                        make_row((*key, metric), side, settings),
                        side,
                        old_sides.get(key, LaunchSet((), ())),
                        settings,
                    )
                )
    result = _comparison(new, old.job, settings.question, rows)
    return replace(
        result, notes=(*result.notes, *_unmatched(old_sides, new_sides), *_scales(old, new))
    )


def _question(confidence: float, margin: float) -> Question:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence {confidence:g} is not between 0 and 1", "for example 95%")
    if not 0 <= margin < 1:
        raise ConfigError(f"margin {margin:g} is not between 0 and 1", "for example 2%")
    return Question(confidence, margin)


def _first_seen(*names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for part in names for name in part))


def _sides(runs: Sequence[StoredRun]) -> dict[tuple[str, str, str], LaunchSet]:
    members: dict[tuple[str, str, str], list[StoredRun]] = {}
    for stored in without_warm_up(runs):
        members.setdefault((stored.variant, stored.host, stored.run.workload), []).append(stored)
    return {
        key: LaunchSet(
            tuple(launches_of(group, METRICS_ALL)), tuple(group), tuple(finished_limits(group))
        )
        for key, group in members.items()
    }


METRICS_ALL = tuple(HIGHER_IS_BETTER)


def _cells(
    runs: Sequence[StoredRun], conditions: ComparisonConditions
) -> list[tuple[str, str, str]]:
    hosts = _first_seen([host for _, host in conditions.planned], [stored.host for stored in runs])
    workloads = _first_seen(
        conditions.workloads if runs else (), [stored.run.workload for stored in runs]
    )
    measured = {metric for stored in runs for metric in stored.run.metrics}
    metrics = [metric for metric in METRICS if metric in measured] or sorted(
        measured & set(METRICS_ALL)
    )
    searches = {
        stored.run.workload: stored.run.searched.of for stored in runs if is_searched(stored)
    } | dict(conditions.searches)
    of_search = {workload: [METRIC_OF[of]] for workload, of in searches.items() if of in METRIC_OF}
    return [
        (host, workload, metric)
        for host in hosts
        for workload in workloads
        for metric in of_search.get(workload, metrics)
    ]


def _comparison(
    conditions: ComparisonConditions, baseline: str, question: Question, rows: list[ComparisonRow]
) -> Comparison:
    notes = []
    if conditions.engine == SIMULATED:
        notes.append(
            f"simulated ×{conditions.time_scale:g}: a model of time, not a measurement of hardware"
        )
    if conditions.engine == EXTERNAL:
        notes.append("external server: no launches, so no verdict about launches is possible")
    notes += _unsteady(rows)
    notes += [note for row in rows for note in open_notes(row.limits)]
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


def _unsteady(rows: list[ComparisonRow]) -> list[str]:
    """A verdict that rests on a launch without a steady state says so."""
    unsteady = [row for row in rows if any(gate.code == NOT_STEADY for gate in row.gates)]
    places = _first_seen(
        [f"{row.variant} {row.workload}{f' on {row.host}' if row.host else ''}" for row in unsteady]
    )
    if not places:
        return []
    more = f" and {len(places) - _PLACES_NAMED} more" if len(places) > _PLACES_NAMED else ""
    return [
        f"no steady state in {', '.join(places[:_PLACES_NAMED])}{more}: such a mean is one of several levels or of a drift"
    ]


def _unmatched(
    old: dict[tuple[str, str, str], LaunchSet], new: dict[tuple[str, str, str], LaunchSet]
) -> list[str]:
    lost = sorted(old.keys() - new.keys())
    return [
        f"not in the second job: {variant} on {host or 'no host'}, workload {workload}"
        for variant, host, workload in lost
    ]


def _scales(old: ComparisonConditions, new: ComparisonConditions) -> list[str]:
    if old.time_scale == new.time_scale:
        return []
    return [
        f"time scales differ: {old.job} ran simulated ×{old.time_scale:g}, {new.job} ×{new.time_scale:g}"
    ]
