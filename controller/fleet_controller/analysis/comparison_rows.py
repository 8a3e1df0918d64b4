"""Makes one row of a comparison from the launches of a variant, and judges it against the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_controller.analysis.comparison_values import (
    EXTERNAL,
    ComparisonRow,
)
from fleet_controller.analysis.launches import (
    MeasuredLaunch,
    gate_counts,
)
from fleet_controller.analysis.slo_limits import (
    METRIC_OF,
    SloLimit,
    limit_ratio,
    mean_limit,
)
from fleet_controller.analysis.statistics import (
    LogRatio,
    mean,
    mean_interval,
    paired_ratio,
    welch_ratio,
)
from fleet_controller.analysis.verdict import (
    Judgement,
    Question,
    Verdict,
    judge_ratio,
    judge_without_interval,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import ACCEPT_LENGTH, HIGHER_IS_BETTER

_NO_LAUNCHES = "an external server is not launched by us: no verdict about launches is possible"
_OPEN = "a limit lies beyond the loads that were searched, or below them"


@dataclass(frozen=True, slots=True)
class LaunchSet:
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
class RowSettings:
    """What all rows of one comparison share."""

    question: Question
    engine: str
    minutes: float | None
    may_pair: bool
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)


def make_row(
    key: tuple[str, str, str, str], side: LaunchSet, settings: RowSettings
) -> ComparisonRow:
    metric = key[3]
    if metric in METRIC_OF.values() and not side.launches:
        return _limit_row(key, side, settings)
    values, accepted = side.values(metric), side.values(ACCEPT_LENGTH)
    independent = settings.engine != EXTERNAL
    return ComparisonRow(
        *key,
        launches=len(values) if independent else 0,
        runs=sum(launch.runs.get(metric, 0) for launch in side.launches),
        mean=mean(values) if values else None,
        interval=mean_interval(values, settings.question.confidence) if independent else None,
        ratio=1.0 if values else None,
        ratio_interval=None,
        verdict=None,
        reason="" if values else _failure(key[0], key[1], values, settings) or "no valid launch",
        needs=None,
        gates=gate_counts(side.runs),
        accept_length=mean(accepted) if accepted else None,
    )


def _limit_row(
    key: tuple[str, str, str, str], side: LaunchSet, settings: RowSettings
) -> ComparisonRow:
    """Of a search. Its gates are those of runs that count as met or not at all: what a run trips by
    not meeting the SLO is its answer.
    """
    independent = settings.engine != EXTERNAL
    value, interval = mean_limit(side.limits, settings.question.confidence)
    return ComparisonRow(
        *key,
        launches=len(side.limits) if independent else 0,
        runs=sum(limit.runs for limit in side.limits),
        mean=value,
        interval=interval if independent else None,
        ratio=1.0 if value else None,
        ratio_interval=None,
        verdict=None,
        reason="" if side.limits else _failure(key[0], key[1], [], settings) or "no valid launch",
        needs=None,
        gates=gate_counts(
            stored for stored in side.runs if stored.run.void or stored.run.searched.met
        ),
        accept_length=None,
        limits=side.limits,
    )


def judge_row(
    row: ComparisonRow,
    side: LaunchSet,
    reference: LaunchSet,
    settings: RowSettings,
    baseline: str = "",
) -> ComparisonRow:
    if row.metric in METRIC_OF.values() and not side.launches:
        return _judge_limit_row(row, side.limits, reference.limits, settings, baseline)
    values, references = side.values(row.metric), reference.values(row.metric)
    ratio = mean(values) / mean(references) if values and references else None
    if settings.engine == EXTERNAL:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=_NO_LAUNCHES)
    failed = _failure(row.variant, row.host, values, settings) or _failure(
        baseline, row.host, references, settings
    )
    if failed:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=failed)
    estimate, method = _estimate(side, reference, row.metric, settings)
    if estimate is None:
        judgement = judge_without_interval(values, references, settings.question, settings.minutes)
        return _with_judgement(replace(row, ratio=ratio), judgement)
    judgement = judge_ratio(
        estimate, settings.question, HIGHER_IS_BETTER[row.metric], settings.minutes
    )
    return _with_judgement(
        replace(row, ratio=estimate.ratio, ratio_interval=estimate.interval, method=method),
        judgement,
    )


def _judge_limit_row(
    row: ComparisonRow,
    ours: Sequence[SloLimit],
    theirs: Sequence[SloLimit],
    settings: RowSettings,
    baseline: str,
) -> ComparisonRow:
    """By the highest loads met, with an interval that holds what the searches leave open."""
    values, references = [limit.met for limit in ours], [limit.met for limit in theirs]
    is_open = not all(limit.is_closed for limit in (*ours, *theirs))
    ratio = mean(values) / mean(references) if values and references and not is_open else None
    if settings.engine == EXTERNAL:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=_NO_LAUNCHES)
    failed = _failure(row.variant, row.host, values, settings) or _failure(
        baseline, row.host, references, settings
    )
    if failed:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=failed)
    estimate, method = limit_ratio(
        ours, theirs, settings.question.confidence, may_pair=settings.may_pair
    )
    if estimate is None:
        few = min(len(values), len(references)) < 2 and not is_open
        judgement = (
            judge_without_interval(values, references, settings.question, settings.minutes)
            if few
            else Judgement(Verdict.INCONCLUSIVE, _OPEN)
        )
        return _with_judgement(replace(row, ratio=ratio), judgement)
    judgement = judge_ratio(
        estimate, settings.question, HIGHER_IS_BETTER[row.metric], settings.minutes
    )
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


def _failure(variant: str, host: str, values: list[float], settings: RowSettings) -> str:
    """Why there is no launch and more would not help; empty when there is one, or when it is only
    early.
    """
    why = settings.failures.get((variant, host), "")
    return f"no valid launch: {variant} failed ({why})" if why and not values else ""


def _with_judgement(row: ComparisonRow, judgement: Judgement) -> ComparisonRow:
    return replace(row, verdict=judgement.verdict, reason=judgement.reason, needs=judgement.needs)


def _estimate(
    side: LaunchSet, reference: LaunchSet, metric: str, settings: RowSettings
) -> tuple[LogRatio | None, str]:
    confidence = settings.question.confidence
    if settings.may_pair:
        ours, theirs = side.by_block(metric), reference.by_block(metric)
        pairs = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
        paired = paired_ratio(pairs, confidence)
        if paired:
            return paired, "paired"
    return welch_ratio(side.values(metric), reference.values(metric), confidence), "unpaired"
