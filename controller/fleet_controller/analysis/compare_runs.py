"""Compares variants of one job, or two jobs, row by row."""

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
from fleet_controller.analysis.verdict import (
    Question,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.errors import ConfigError
from fleet_protos.metric_names import HIGHER_IS_BETTER, OUTPUT_TOK_S, TPOT_MEAN

METRICS = (OUTPUT_TOK_S, TPOT_MEAN)
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
    """Compare every variant with `baseline` on the same host. Launches are paired by block if at
    least two blocks have launches of both variants.

    Raises ConfigError if the baseline is not among the variants. Raises ConfigError if confidence
    or margin is out of range.
    """
    conditions = conditions or ComparisonConditions()
    settings = RowSettings(
        _checked_question(confidence, margin),
        conditions.engine,
        minutes_per_launch(runs),
        True,
        conditions.failures,
    )
    variants = _unique_names(
        [variant for variant, _ in conditions.planned], [stored.variant for stored in runs]
    )
    if variants and baseline not in variants:
        known = ", ".join(variants)
        raise ConfigError(
            f"baseline {baseline!r} is not a variant of this job",
            f"use one of these variants: {known}",
        )
    variants.sort(key=lambda variant: variant != baseline)
    launch_sets = _launch_sets(runs)
    rows = []
    for host, workload, metric in _row_keys(runs, conditions):
        reference = launch_sets.get((baseline, host, workload), LaunchSet((), ()))
        for variant in variants:
            if (variant, host, workload) in launch_sets or (variant, host) in conditions.planned:
                launch_set = launch_sets.get((variant, host, workload), LaunchSet((), ()))
                row = make_row((variant, host, workload, metric), launch_set, settings)
                rows.append(
                    row
                    if variant == baseline
                    else judge_row(row, launch_set, reference, settings, baseline)
                )
    return _comparison(conditions, baseline, settings.question, rows)


def compare_jobs(
    before: tuple[ComparisonConditions, Sequence[StoredRun]],
    after: tuple[ComparisonConditions, Sequence[StoredRun]],
    confidence: float,
    margin: float,
) -> Comparison:
    """Compare each variant of `after` with the variant of the same name in `before`, on the same
    host and workload. Launches are not paired.

    Raises ConfigError if only one of the jobs is simulated, because such a ratio would mean
    nothing.
    """
    (old, old_runs), (new, new_runs) = before, after
    if (old.engine == SIMULATED) != (new.engine == SIMULATED):
        raise ConfigError(
            (
                f"job {old.job} ran on engine {old.engine}, and job {new.job} ran on {new.engine}: "
                "simulated and real runs cannot be compared"
            ),
            "compare two jobs that ran on the same kind of engine",
        )
    external = EXTERNAL if EXTERNAL in (old.engine, new.engine) else new.engine
    settings = RowSettings(
        _checked_question(confidence, margin),
        external,
        minutes_per_launch(new_runs),
        False,
        new.failures,
    )
    old_sets, new_sets = _launch_sets(old_runs), _launch_sets(new_runs)
    rows = []
    for host, workload, metric in _row_keys(new_runs, new):
        for variant in _unique_names(
            [variant for variant, _ in new.planned], [stored.variant for stored in new_runs]
        ):
            key = (variant, host, workload)
            if key in new_sets:
                launch_set = new_sets[key]
                rows.append(
                    judge_row(
                        make_row((*key, metric), launch_set, settings),
                        launch_set,
                        old_sets.get(key, LaunchSet((), ())),
                        settings,
                    )
                )
    result = _comparison(new, old.job, settings.question, rows)
    return replace(
        result,
        notes=(*result.notes, *_unmatched_notes(old_sets, new_sets), *_time_scale_notes(old, new)),
    )


def _checked_question(confidence: float, margin: float) -> Question:
    if not 0 < confidence < 1:
        raise ConfigError(
            f"confidence {confidence:g} is not between 0 and 1", "write a value such as 95%"
        )
    if not 0 <= margin < 1:
        raise ConfigError(f"margin {margin:g} is not between 0 and 1", "write a value such as 2%")
    return Question(confidence, margin)


def _unique_names(*names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for part in names for name in part))


def _launch_sets(runs: Sequence[StoredRun]) -> dict[tuple[str, str, str], LaunchSet]:
    members: dict[tuple[str, str, str], list[StoredRun]] = {}
    for stored in without_warm_up(runs):
        members.setdefault((stored.variant, stored.host, stored.run.workload), []).append(stored)
    return {
        key: LaunchSet(
            tuple(group_launches(group, METRICS_ALL)), tuple(group), tuple(finished_limits(group))
        )
        for key, group in members.items()
    }


def _row_keys(
    runs: Sequence[StoredRun], conditions: ComparisonConditions
) -> list[tuple[str, str, str]]:
    hosts = _unique_names(
        [host for _, host in conditions.planned], [stored.host for stored in runs]
    )
    workloads = _unique_names(
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
        notes.append("external server: no verdict is possible without launches")
    notes += _unsteady_notes(rows)
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


def _unsteady_notes(rows: list[ComparisonRow]) -> list[str]:
    """Return a note that names launches without a steady state, because verdicts rest on these
    launches.
    """
    unsteady = [row for row in rows if any(gate.code == NOT_STEADY for gate in row.gates)]
    places = _unique_names(
        [f"{row.variant} {row.workload}{f' on {row.host}' if row.host else ''}" for row in unsteady]
    )
    if not places:
        return []
    named = ", ".join(places[:_PLACES_NAMED])
    more = f" and {len(places) - _PLACES_NAMED} more" if len(places) > _PLACES_NAMED else ""
    return [(f"no steady state in {named}{more}: its mean mixes different speeds or a drift")]


def _unmatched_notes(
    old: dict[tuple[str, str, str], LaunchSet], new: dict[tuple[str, str, str], LaunchSet]
) -> list[str]:
    lost = sorted(old.keys() - new.keys())
    return [
        f"not in the second job: {variant} on {host}, workload {workload}"
        for variant, host, workload in ((name[0], name[1] or "no host", name[2]) for name in lost)
    ]


def _time_scale_notes(old: ComparisonConditions, new: ComparisonConditions) -> list[str]:
    if old.time_scale == new.time_scale:
        return []
    return [
        (
            f"the time scales differ: job {old.job} ran simulated ×{old.time_scale:g}, and job "
            f"{new.job} ran simulated ×{new.time_scale:g}"
        )
    ]
