"""Owns the comparison: which launches meet which, row by row. Reads no store, prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_controller.analysis.launches import (
    GateCount,
    MeasuredLaunch,
    gate_counts,
    launches_of,
    minutes_per_launch,
    without_warm_up,
)
from fleet_controller.analysis.slo_limits import (
    METRIC_OF,
    SloLimit,
    finished_limits,
    is_searched,
    limit_ratio,
    mean_limit,
    open_notes,
)
from fleet_controller.analysis.statistics import (
    Interval,
    LogRatio,
    mean,
    mean_interval,
    paired_ratio,
    welch_ratio,
)
from fleet_controller.analysis.verdict import (
    Judgement,
    Needs,
    Question,
    Verdict,
    judge_ratio,
    judge_without_interval,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.errors import ConfigError
from fleet_protos.metric_names import ACCEPT_LENGTH, HIGHER_IS_BETTER, OUTPUT_TOK_S, TPOT_MEAN

METRICS = (OUTPUT_TOK_S, TPOT_MEAN)
EXTERNAL = "external"
NOT_STEADY = "not_steady"  # the gate of a launch that never became steady
_PLACES_NAMED = 3
_NO_LAUNCHES = "an external server is not launched by us: no verdict about launches is possible"
_OPEN = "a limit lies beyond the loads that were searched, or below them"
SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class ComparisonConditions:
    """What the runs were measured on. `planned` names (variant, host) pairs of the plan, so that
    one without runs has a row too; `workloads` those of the job, in its order.

    `failures` says why a pair has no launch and will have none, such as `short_output ×2`: more
    launches would not help it.
    """

    job: str = ""
    engine: str = ""
    time_scale: float = 1.0
    planned: tuple[tuple[str, str], ...] = ()
    workloads: tuple[str, ...] = ()
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)
    searches: Mapping[str, str] = field(default_factory=dict)  # workload → what its search is of


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One variant on one host under one workload, by one metric. `mean` and `interval` in the
    metric's unit, ratios without.

    The baseline's own row has ratio 1, no ratio interval and no verdict. `method` is `paired`,
    `unpaired` or empty. `limits`: what the searches of its launches found; then an interval may be
    open, up to infinity, and the mean is None where a limit is.
    """

    variant: str
    host: str
    workload: str
    metric: str
    launches: int
    runs: int
    mean: float | None
    interval: Interval | None
    ratio: float | None
    ratio_interval: Interval | None
    verdict: Verdict | None
    reason: str
    needs: Needs | None
    gates: tuple[GateCount, ...]
    accept_length: float | None
    method: str = ""
    limits: tuple[SloLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows by host, workload and metric, the baseline first; `notes` hold for every row."""

    job: str
    engine: str
    time_scale: float
    baseline: str
    question: Question
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _LaunchSet:
    """The launches of one variant on one host under one workload."""

    launches: tuple[MeasuredLaunch, ...]
    runs: tuple[StoredRun, ...]
    limits: tuple[SloLimit, ...] = ()

    def values(self, metric: str) -> list[float]:
        return [launch.values[metric] for launch in self.launches if metric in launch.values]

    def by_block(self, metric: str) -> dict[int, float]:
        return {
            launch.block: launch.values[metric]
            for launch in self.launches
            if metric in launch.values and launch.block > 0
        }


@dataclass(frozen=True, slots=True)
class _SharedSettings:
    """What all rows of one comparison share."""

    question: Question
    engine: str
    minutes: float | None
    may_pair: bool
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)


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
    frame = _SharedSettings(
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
        reference = sides.get((baseline, host, workload), _LaunchSet((), ()))
        for variant in variants:
            if (variant, host, workload) in sides or (variant, host) in conditions.planned:
                side = sides.get((variant, host, workload), _LaunchSet((), ()))
                row = _row((variant, host, workload, metric), side, frame)
                rows.append(
                    row
                    if variant == baseline
                    else _judge_row(row, side, reference, frame, baseline)
                )
    return _comparison(conditions, baseline, frame.question, rows)


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
    frame = _SharedSettings(
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
                    _judge_row(
                        _row((*key, metric), side, frame),
                        side,
                        old_sides.get(key, _LaunchSet((), ())),
                        frame,
                    )
                )
    result = _comparison(new, old.job, frame.question, rows)
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


def _sides(runs: Sequence[StoredRun]) -> dict[tuple[str, str, str], _LaunchSet]:
    members: dict[tuple[str, str, str], list[StoredRun]] = {}
    for stored in without_warm_up(runs):
        members.setdefault((stored.variant, stored.host, stored.run.workload), []).append(stored)
    return {
        key: _LaunchSet(
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


def _row(key: tuple[str, str, str, str], side: _LaunchSet, frame: _SharedSettings) -> ComparisonRow:
    metric = key[3]
    if metric in METRIC_OF.values() and not side.launches:
        return _limit_row(key, side, frame)
    values, accepted = side.values(metric), side.values(ACCEPT_LENGTH)
    independent = frame.engine != EXTERNAL
    return ComparisonRow(
        *key,
        launches=len(values) if independent else 0,
        runs=sum(launch.runs.get(metric, 0) for launch in side.launches),
        mean=mean(values) if values else None,
        interval=mean_interval(values, frame.question.confidence) if independent else None,
        ratio=1.0 if values else None,
        ratio_interval=None,
        verdict=None,
        reason="" if values else _failure(key[0], key[1], values, frame) or "no valid launch",
        needs=None,
        gates=gate_counts(side.runs),
        accept_length=mean(accepted) if accepted else None,
    )


def _limit_row(
    key: tuple[str, str, str, str], side: _LaunchSet, frame: _SharedSettings
) -> ComparisonRow:
    """Of a search. Its gates are those of runs that count as met or not at all: what a run trips by
    not meeting the SLO is its answer.
    """
    independent = frame.engine != EXTERNAL
    value, interval = mean_limit(side.limits, frame.question.confidence)
    return ComparisonRow(
        *key,
        launches=len(side.limits) if independent else 0,
        runs=sum(limit.runs for limit in side.limits),
        mean=value,
        interval=interval if independent else None,
        ratio=1.0 if value else None,
        ratio_interval=None,
        verdict=None,
        reason="" if side.limits else _failure(key[0], key[1], [], frame) or "no valid launch",
        needs=None,
        gates=gate_counts(
            stored for stored in side.runs if stored.run.void or stored.run.searched.met
        ),
        accept_length=None,
        limits=side.limits,
    )


def _judge_row(
    row: ComparisonRow,
    side: _LaunchSet,
    reference: _LaunchSet,
    frame: _SharedSettings,
    baseline: str = "",
) -> ComparisonRow:
    if row.metric in METRIC_OF.values() and not side.launches:
        return _judge_limit_row(row, side.limits, reference.limits, frame, baseline)
    values, references = side.values(row.metric), reference.values(row.metric)
    ratio = mean(values) / mean(references) if values and references else None
    if frame.engine == EXTERNAL:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=_NO_LAUNCHES)
    failed = _failure(row.variant, row.host, values, frame) or _failure(
        baseline, row.host, references, frame
    )
    if failed:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=failed)
    estimate, method = _estimate(side, reference, row.metric, frame)
    if estimate is None:
        judgement = judge_without_interval(values, references, frame.question, frame.minutes)
        return _with_judgement(replace(row, ratio=ratio), judgement)
    judgement = judge_ratio(estimate, frame.question, HIGHER_IS_BETTER[row.metric], frame.minutes)
    return _with_judgement(
        replace(row, ratio=estimate.ratio, ratio_interval=estimate.interval, method=method),
        judgement,
    )


def _judge_limit_row(
    row: ComparisonRow,
    ours: Sequence[SloLimit],
    theirs: Sequence[SloLimit],
    frame: _SharedSettings,
    baseline: str,
) -> ComparisonRow:
    """By the highest loads met, with an interval that holds what the searches leave open."""
    values, references = [limit.met for limit in ours], [limit.met for limit in theirs]
    is_open = not all(limit.is_closed for limit in (*ours, *theirs))
    ratio = mean(values) / mean(references) if values and references and not is_open else None
    if frame.engine == EXTERNAL:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=_NO_LAUNCHES)
    failed = _failure(row.variant, row.host, values, frame) or _failure(
        baseline, row.host, references, frame
    )
    if failed:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=failed)
    estimate, method = limit_ratio(ours, theirs, frame.question.confidence, may_pair=frame.may_pair)
    if estimate is None:
        few = min(len(values), len(references)) < 2 and not is_open
        judgement = (
            judge_without_interval(values, references, frame.question, frame.minutes)
            if few
            else Judgement(Verdict.INCONCLUSIVE, _OPEN)
        )
        return _with_judgement(replace(row, ratio=ratio), judgement)
    judgement = judge_ratio(estimate, frame.question, HIGHER_IS_BETTER[row.metric], frame.minutes)
    if is_open and judgement.verdict == Verdict.INCONCLUSIVE:
        judgement = Judgement(Verdict.INCONCLUSIVE, _OPEN)
    return _with_judgement(
        replace(
            row,
            ratio=None if is_open else estimate.ratio,
            ratio_interval=estimate.interval,
            method=method,
        ),
        judgement,
    )


def _failure(variant: str, host: str, values: list[float], frame: _SharedSettings) -> str:
    """Why there is no launch and more would not help; empty when there is one, or when it is only
    early.
    """
    why = frame.failures.get((variant, host), "")
    return f"no valid launch: {variant} failed ({why})" if why and not values else ""


def _with_judgement(row: ComparisonRow, judgement: Judgement) -> ComparisonRow:
    return replace(row, verdict=judgement.verdict, reason=judgement.reason, needs=judgement.needs)


def _estimate(
    side: _LaunchSet, reference: _LaunchSet, metric: str, frame: _SharedSettings
) -> tuple[LogRatio | None, str]:
    confidence = frame.question.confidence
    if frame.may_pair:
        ours, theirs = side.by_block(metric), reference.by_block(metric)
        pairs = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
        paired = paired_ratio(pairs, confidence)
        if paired:
            return paired, "paired"
    return welch_ratio(side.values(metric), reference.values(metric), confidence), "unpaired"


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
    old: dict[tuple[str, str, str], _LaunchSet], new: dict[tuple[str, str, str], _LaunchSet]
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
