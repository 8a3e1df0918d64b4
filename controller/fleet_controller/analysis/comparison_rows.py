"""Makes the rows of one cell (host, workload, metric) from its launches and judges them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_controller.analysis.cell_judgement import judge_cell
from fleet_controller.analysis.cell_model import LaunchValue
from fleet_controller.analysis.comparison_values import EXTERNAL, ComparisonRow
from fleet_controller.analysis.launches import MeasuredLaunch, gate_counts
from fleet_controller.analysis.ratio_estimates import (
    CellEstimate,
    RatioEstimate,
    cell_estimates,
)
from fleet_controller.analysis.slo_limits import (
    METRIC_OF,
    SloLimit,
    limit_estimates,
    mean_limit,
)
from fleet_controller.analysis.statistics import Interval, mean, mean_interval
from fleet_controller.analysis.verdict import (
    CLOSED,
    LAUNCHES_FOR_VERDICT,
    Judgement,
    OpenEnds,
    Outlook,
    Question,
    Verdict,
    judge_without_verdict,
    ratio_interval,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import ACCEPT_LENGTH, HIGHER_IS_BETTER
from fleet_protos.trial_types import is_void

NO_LAUNCHES = (
    "an external server is not launched by benchfleet: no verdict is possible without launches"
)
_OPEN = "a limit is above or below the loads that were searched"
_ZERO = "a launch has the value 0, of which no ratio can be formed"


@dataclass(frozen=True, slots=True)
class LaunchSet:
    """The launches of one variant on one host under one workload."""

    launches: tuple[MeasuredLaunch, ...] = ()
    runs: tuple[StoredRun, ...] = ()
    limits: tuple[SloLimit, ...] = ()

    def with_metric(self, metric: str) -> list[MeasuredLaunch]:
        """Return the launches that have a value of this metric."""
        return [launch for launch in self.launches if metric in launch.values]


@dataclass(frozen=True, slots=True)
class RowSettings:
    """The settings that all rows of one comparison share. `minutes` is the wall time of one launch.
    `failures` is as in ComparisonConditions.
    """

    question: Question
    engine: str
    minutes: float | None
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """The launches of all variants on one host under one workload, for one metric.

    `is_judged` says whether its rows get a verdict.
    """

    host: str
    workload: str
    metric: str
    baseline: str
    launch_sets: Mapping[str, LaunchSet]  # by variant
    is_judged: bool = True

    @property
    def is_search(self) -> bool:
        """Whether the metric is the limit that a search found."""
        return self.metric in METRIC_OF.values() and not any(
            launch_set.launches for launch_set in self.launch_sets.values()
        )

    def is_open(self, variant: str) -> bool:
        """Return True if a search of the variant or of the baseline left its limit open."""
        return self.is_search and not all(
            limit.is_closed
            for name in (variant, self.baseline)
            for limit in self.launch_sets.get(name, LaunchSet()).limits
        )

    def values(self, variant: str) -> list[float]:
        """Return the value of each launch of a variant."""
        launch_set = self.launch_sets.get(variant, LaunchSet())
        if self.is_search:
            return [limit.met for limit in launch_set.limits]
        return [launch.values[self.metric] for launch in launch_set.with_metric(self.metric)]


def cell_rows(cell: Cell, settings: RowSettings) -> list[ComparisonRow]:
    """Return the rows of the cell's variants, in their order."""
    estimates, ends = estimates_of(cell)
    if settings.engine == EXTERNAL:
        estimates = {}
    rows = [
        plain_row(cell, variant, settings, _used_blocks(variant, cell.baseline, estimates))
        for variant in cell.launch_sets
    ]
    rows = [
        row
        if row.variant == cell.baseline
        else with_estimate(row, estimates.get(row.variant), ends.get(row.variant, CLOSED), settings)
        for row in rows
    ]
    judgements = _judgements(cell, estimates, ends, settings) if cell.is_judged else {}
    return [
        replace(row, verdict=found.verdict, reason=found.reason, needs=found.needs)
        if (found := judgements.get(row.variant))
        else row
        for row in (replace(row, is_judged=cell.is_judged) for row in rows)
    ]


def estimates_of(cell: Cell) -> tuple[Mapping[str, RatioEstimate], Mapping[str, OpenEnds]]:
    """Return the ratio of each variant to the baseline, and how far it is open."""
    if cell.is_search:
        limits = {variant: own.limits for variant, own in cell.launch_sets.items()}
        return limit_estimates(limits, cell.baseline)
    launches = [
        LaunchValue(variant, launch.block, launch.values[cell.metric])
        for variant, own in cell.launch_sets.items()
        for launch in own.with_metric(cell.metric)
    ]
    if any(launch.value <= 0 for launch in launches):
        return {}, {}  # a ratio of zero has no logarithm
    return cell_estimates(launches, cell.baseline), {}


def _used_blocks(
    variant: str, baseline: str, estimates: Mapping[str, RatioEstimate]
) -> frozenset[int] | None:
    """Return the blocks of the launches behind a row's ratio, or None if all launches are."""
    for estimate in estimates.values():
        if isinstance(estimate, CellEstimate) and variant in (estimate.variant, baseline):
            return estimate.model.blocks
    return None


def plain_row(
    cell: Cell, variant: str, settings: RowSettings, blocks: frozenset[int] | None = None
) -> ComparisonRow:
    """Return the row of a variant without an estimate and a verdict, from its launches in these
    blocks (None: from all).
    """
    if cell.is_search:
        return _search_row(cell, variant, settings)
    launch_set, metric = cell.launch_sets[variant], cell.metric
    launches = [
        launch
        for launch in launch_set.with_metric(metric)
        if blocks is None or launch.block in blocks
    ]
    values = [launch.values[metric] for launch in launches]
    accepted = [launch.values[ACCEPT_LENGTH] for launch in launch_set.with_metric(ACCEPT_LENGTH)]
    independent = settings.engine != EXTERNAL
    return ComparisonRow(
        variant,
        cell.host,
        cell.workload,
        metric,
        launches=len(values) if independent else 0,
        runs=sum(launch.runs[metric] for launch in launches),
        mean=mean(values) if values else None,
        interval=mean_interval(values, settings.question.confidence) if independent else None,
        ratio=_plain_ratio(cell, variant),
        ratio_interval=None,
        verdict=None,
        reason=""
        if values
        else _failure_reason(variant, cell.host, values, settings) or "no valid launch",
        needs=None,
        gates=gate_counts(launch_set.runs),
        accept_length=mean(accepted) if accepted else None,
        left_out=len(launch_set.with_metric(metric)) - len(launches),
    )


def _search_row(cell: Cell, variant: str, settings: RowSettings) -> ComparisonRow:
    """Return the row of a search. It counts the gates of void runs and of runs that met the SLO. A
    gate that trips because a run fails the SLO is a result, not a fault.
    """
    launch_set, independent = cell.launch_sets[variant], settings.engine != EXTERNAL
    value, interval = mean_limit(launch_set.limits, settings.question.confidence)
    return ComparisonRow(
        variant,
        cell.host,
        cell.workload,
        cell.metric,
        launches=len(launch_set.limits) if independent else 0,
        runs=sum(limit.runs for limit in launch_set.limits),
        mean=value,
        interval=interval if independent else None,
        ratio=_plain_ratio(cell, variant) if value else None,
        ratio_interval=None,
        verdict=None,
        reason=""
        if launch_set.limits
        else _failure_reason(variant, cell.host, [], settings) or "no valid launch",
        needs=None,
        gates=gate_counts(
            stored for stored in launch_set.runs if is_void(stored.run) or stored.run.searched.met
        ),
        accept_length=None,
        limits=launch_set.limits,
    )


def _plain_ratio(cell: Cell, variant: str) -> float | None:
    """Return the ratio of the arithmetic means, for rows without an estimate."""
    values, references = cell.values(variant), cell.values(cell.baseline)
    if not values:
        return None
    if variant == cell.baseline:
        return 1.0
    if cell.is_open(variant):
        return None
    return mean(values) / mean(references) if references and mean(references) > 0 else None


def with_estimate(
    row: ComparisonRow, estimate: RatioEstimate | None, ends: OpenEnds, settings: RowSettings
) -> ComparisonRow:
    """Return the row with the ratio of the estimate, if there is one."""
    if estimate is None:
        return row
    question = settings.question
    interval = ratio_interval(estimate, question.row_confidence, ends)
    is_open = math.isinf(ends.below) or math.isinf(ends.above)
    model = estimate.model if isinstance(estimate, CellEstimate) else None
    return replace(
        row,
        ratio=None if is_open else exp(estimate.difference),
        ratio_interval=Interval(exp(interval.low), exp(interval.high)),
        method=estimate.method,
        ratio_of_means=row.ratio,
        half=estimate.half_width(question.row_confidence),
        confidence=question.row_confidence,
        residual_sd=model.residual_deviation if model else None,
        degrees=model.degrees if model else None,
    )


def exp(value: float) -> float:
    """Return e to this power, and infinity where that is too large for a float."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _judgements(
    cell: Cell,
    estimates: Mapping[str, RatioEstimate],
    ends: Mapping[str, OpenEnds],
    settings: RowSettings,
) -> dict[str, Judgement]:
    """Return the judgement of each row but the baseline's."""
    judgements: dict[str, Judgement] = {}
    ready: dict[str, RatioEstimate] = {}
    references = cell.values(cell.baseline)
    outlook = Outlook(settings.minutes, len(cell.launch_sets))
    for variant in cell.launch_sets:
        if variant == cell.baseline:
            continue
        values = cell.values(variant)
        reason = _why_no_verdict(cell, variant, settings)
        if variant not in estimates and not reason:
            reason = _why_no_ratio(cell, variant)
        if reason:
            judgements[variant] = Judgement(Verdict.INCONCLUSIVE, reason)
        elif min(len(values), len(references)) < LAUNCHES_FOR_VERDICT:
            judgements[variant] = judge_without_verdict(
                values, references, settings.question, outlook
            )
        else:
            ready[variant] = estimates[variant]
    found = judge_cell(ready, settings.question, HIGHER_IS_BETTER[cell.metric], outlook, ends)
    for variant, judgement in found.items():
        is_open = judgement.verdict is Verdict.INCONCLUSIVE and cell.is_open(variant)
        judgements[variant] = Judgement(judgement.verdict, _OPEN) if is_open else judgement
    return judgements


def _why_no_verdict(cell: Cell, variant: str, settings: RowSettings) -> str:
    """Return why no number of launches would give a verdict; empty if launches can."""
    if settings.engine == EXTERNAL:
        return NO_LAUNCHES
    reasons = (
        _failure_reason(name, cell.host, cell.values(name), settings)
        for name in (variant, cell.baseline)
    )
    return next(filter(None, reasons), "")


def _why_no_ratio(cell: Cell, variant: str) -> str:
    """Return what is wrong with the values of which no ratio can be formed; empty if nothing is."""
    if cell.is_open(variant):
        return _OPEN
    values = (*cell.values(variant), *cell.values(cell.baseline))
    return _ZERO if any(value <= 0 for value in values) else ""


def _failure_reason(variant: str, host: str, values: Sequence[float], settings: RowSettings) -> str:
    """Return why the variant has no launch and more launches would not help. Return an empty text
    if it has one, or if launches may still come.
    """
    why = settings.failures.get((variant, host), "")
    return f"no valid launch: {variant} failed ({why})" if why and not values else ""
