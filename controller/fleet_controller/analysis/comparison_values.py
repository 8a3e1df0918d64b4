"""Defines the result of a comparison, and the conditions under which its runs were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_controller.analysis.launches import (
    GateCount,
)
from fleet_controller.analysis.slo_limits import (
    SloLimit,
)
from fleet_controller.analysis.statistics import (
    Interval,
)
from fleet_controller.analysis.verdict import (
    Needs,
    Question,
    Verdict,
)

EXTERNAL = "external"
SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class ComparisonConditions:
    """The conditions under which the runs were measured.

    `planned` lists the (variant, host) pairs of the plan, so that a pair without runs has a row
    too. `workloads` lists the job's workloads in their order. `failures` says why a pair has no
    valid launch and will get none, such as `short_output ×2`. More launches of that pair would not
    help. `judged` holds the metrics that get a verdict, for each workload. `by_method_1` says that
    the job is from a version that judged it by method 1: notes then name the verdicts that changed.
    """

    job: str = ""
    engine: str = ""
    time_scale: float = 1.0
    planned: tuple[tuple[str, str], ...] = ()
    workloads: tuple[str, ...] = ()
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)
    judged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_method_1: bool = False
    searches: Mapping[str, str] = field(
        default_factory=dict
    )  # workload → load of its search: rate or concurrency


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One variant on one host under one workload, for one metric. `mean` and `interval` are in the
    metric's unit. Ratios have no unit.

    `ratio` is a geometric mean over launches, `ratio_of_means` the ratio of the arithmetic means.
    The baseline's own row has ratio 1, no ratio interval and no verdict. `method` is `paired`,
    `unpaired` or empty. `limits` holds the results of the searches in its launches. In the row of a
    search, an interval may be open, up to infinity, and the mean is None if a limit is open.

    `is_judged` is False for a metric that is shown without verdicts. `half` is the half-width of
    `ratio_interval` on the log scale and `confidence` the one that the intervals of all rows of the
    cell have together. `residual_sd` (relative) and `degrees` describe the noise in the model of
    the cell. `left_out` counts launches that are not in mean and ratio, because their block holds
    no other variant.
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
    ratio_of_means: float | None = None
    limits: tuple[SloLimit, ...] = ()
    is_judged: bool = True
    half: float | None = None
    confidence: float | None = None
    residual_sd: float | None = None
    degrees: int | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows of a comparison, by host, workload and metric, with the baseline first. `notes`
    apply to every row.
    """

    job: str
    engine: str
    time_scale: float
    baseline: str
    question: Question
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()
