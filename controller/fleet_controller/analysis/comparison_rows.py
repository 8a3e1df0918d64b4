"""Makes one row of a comparison from the launches of a variant, and judges it against the
baseline.
"""

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
from fleet_protos.trial_types import is_void

_NO_LAUNCHES = (
    "an external server is not launched by benchfleet: no verdict is possible without launches"
)
_OPEN = "a limit is above or below the loads that were searched"


@dataclass(frozen=True, slots=True)
class LaunchSet:
    """The launches of one variant on one host under one workload."""

    launches: tuple[MeasuredLaunch, ...]
    runs: tuple[StoredRun, ...]
    limits: tuple[SloLimit, ...] = ()

    def values(self, metric: str) -> list[float]:
        """Return the value of `metric` for each launch that has it."""
        return [launch.values[metric] for launch in self.launches if metric in launch.values]

    def by_block(self, metric: str) -> dict[int, float]:
        """Return the value of `metric` for each block, from the launches that belong to a block."""
        return {
            launch.block: launch.values[metric]
            for launch in self.launches
            if metric in launch.values and launch.block > 0
        }


@dataclass(frozen=True, slots=True)
class RowSettings:
    """The settings that all rows of one comparison share. `minutes` is the wall time of one launch.
    `failures` is as in ComparisonConditions.
    """

    question: Question
    engine: str
    minutes: float | None
    may_pair: bool
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)


def make_row(
    key: tuple[str, str, str, str], launch_set: LaunchSet, settings: RowSettings
) -> ComparisonRow:
    """Return the row of `key` (variant, host, workload, metric), without a verdict."""
    metric = key[3]
    if metric in METRIC_OF.values() and not launch_set.launches:
        return _limit_row(key, launch_set, settings)
    values, accepted = launch_set.values(metric), launch_set.values(ACCEPT_LENGTH)
    independent = settings.engine != EXTERNAL
    return ComparisonRow(
        *key,
        launches=len(values) if independent else 0,
        runs=sum(launch.runs.get(metric, 0) for launch in launch_set.launches),
        mean=mean(values) if values else None,
        interval=mean_interval(values, settings.question.confidence) if independent else None,
        ratio=1.0 if values else None,
        ratio_interval=None,
        verdict=None,
        reason=""
        if values
        else _failure_reason(key[0], key[1], values, settings) or "no valid launch",
        needs=None,
        gates=gate_counts(launch_set.runs),
        accept_length=mean(accepted) if accepted else None,
    )


def _limit_row(
    key: tuple[str, str, str, str], launch_set: LaunchSet, settings: RowSettings
) -> ComparisonRow:
    """Return the row of a search. It counts the gates of void runs and of runs that met the SLO. A
    gate that trips because a run fails the SLO is a result, not a fault.
    """
    independent = settings.engine != EXTERNAL
    value, interval = mean_limit(launch_set.limits, settings.question.confidence)
    return ComparisonRow(
        *key,
        launches=len(launch_set.limits) if independent else 0,
        runs=sum(limit.runs for limit in launch_set.limits),
        mean=value,
        interval=interval if independent else None,
        ratio=1.0 if value else None,
        ratio_interval=None,
        verdict=None,
        reason=""
        if launch_set.limits
        else _failure_reason(key[0], key[1], [], settings) or "no valid launch",
        needs=None,
        gates=gate_counts(
            stored for stored in launch_set.runs if is_void(stored.run) or stored.run.searched.met
        ),
        accept_length=None,
        limits=launch_set.limits,
    )


def judge_row(
    row: ComparisonRow,
    launch_set: LaunchSet,
    reference: LaunchSet,
    settings: RowSettings,
    baseline: str = "",
) -> ComparisonRow:
    """Return `row` with its ratio to the baseline's launches (`reference`), its verdict and the
    reason.
    """
    if row.metric in METRIC_OF.values() and not launch_set.launches:
        return _judge_limit_row(row, launch_set.limits, reference.limits, settings, baseline)
    values, references = launch_set.values(row.metric), reference.values(row.metric)
    ratio = mean(values) / mean(references) if values and references else None
    if settings.engine == EXTERNAL:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=_NO_LAUNCHES)
    failed = _failure_reason(row.variant, row.host, values, settings) or _failure_reason(
        baseline, row.host, references, settings
    )
    if failed:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=failed)
    estimate, method = _estimate(launch_set, reference, row.metric, settings)
    if estimate is None:
        judgement = judge_without_interval(values, references, settings.question, settings.minutes)
        return _with_judgement(replace(row, ratio=ratio), judgement)
    judgement = judge_ratio(
        estimate, settings.question, HIGHER_IS_BETTER[row.metric], settings.minutes
    )
    return _with_judgement(
        replace(
            row,
            ratio=estimate.ratio,
            ratio_interval=estimate.interval,
            method=method,
            ratio_of_means=ratio,
        ),
        judgement,
    )


def _judge_limit_row(
    row: ComparisonRow,
    ours: Sequence[SloLimit],
    theirs: Sequence[SloLimit],
    settings: RowSettings,
    baseline: str,
) -> ComparisonRow:
    """Judge a search by the highest loads that met the SLO. The interval includes what the searches
    leave open.
    """
    values, references = [limit.met for limit in ours], [limit.met for limit in theirs]
    is_open = not all(limit.is_closed for limit in (*ours, *theirs))
    ratio = mean(values) / mean(references) if values and references and not is_open else None
    if settings.engine == EXTERNAL:
        return replace(row, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=_NO_LAUNCHES)
    failed = _failure_reason(row.variant, row.host, values, settings) or _failure_reason(
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


def _failure_reason(variant: str, host: str, values: list[float], settings: RowSettings) -> str:
    """Return why the variant has no launch and more launches would not help. Return an empty text
    if it has one, or if launches may still come.
    """
    why = settings.failures.get((variant, host), "")
    return f"no valid launch: {variant} failed ({why})" if why and not values else ""


def _with_judgement(row: ComparisonRow, judgement: Judgement) -> ComparisonRow:
    return replace(row, verdict=judgement.verdict, reason=judgement.reason, needs=judgement.needs)


def _estimate(
    launch_set: LaunchSet, reference: LaunchSet, metric: str, settings: RowSettings
) -> tuple[LogRatio | None, str]:
    confidence = settings.question.confidence
    if settings.may_pair:
        ours, theirs = launch_set.by_block(metric), reference.by_block(metric)
        pairs = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
        paired = paired_ratio(pairs, confidence)
        if paired:
            return paired, "paired"
    return welch_ratio(launch_set.values(metric), reference.values(metric), confidence), "unpaired"
