"""The result of a comparison, and the conditions under which its runs were measured."""

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
