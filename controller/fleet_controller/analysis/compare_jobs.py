"""Compares two jobs, or several jobs before and after a change.

Two jobs differ by their sessions too: the same configuration measured twice often differs by more
than its launches do. So a verdict needs a bridge, which is a variant with the same configuration in
both jobs, or at least three jobs on each side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fleet_controller.analysis.cell_judgement import judge_cell
from fleet_controller.analysis.compare_runs import (
    cell_keys,
    check_question,
    judged_count,
    launch_sets,
    make_comparison,
    unique_names,
)
from fleet_controller.analysis.comparison_rows import (
    NO_LAUNCHES,
    Cell,
    LaunchSet,
    RowSettings,
    estimates_of,
    plain_row,
    with_estimate,
)
from fleet_controller.analysis.comparison_values import (
    EXTERNAL,
    SIMULATED,
    Comparison,
    ComparisonConditions,
    ComparisonRow,
)
from fleet_controller.analysis.launches import minutes_per_launch
from fleet_controller.analysis.ratio_estimates import (
    BridgeEstimate,
    RatioEstimate,
    welch_estimate,
)
from fleet_controller.analysis.statistics import geometric_mean
from fleet_controller.analysis.verdict import (
    CLOSED,
    LAUNCHES_FOR_VERDICT,
    OpenEnds,
    Outlook,
    Question,
    Verdict,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.errors import ConfigError
from fleet_protos.metric_names import HIGHER_IS_BETTER

JOBS_FOR_VERDICT = 3  # on each side, without a bridge
MeasuredJob = tuple[ComparisonConditions, Sequence[StoredRun]]

_NO_BRIDGE = (
    "two jobs also differ by their sessions, and no variant has the same configuration in both: "
    f"measure one in both, or compare {JOBS_FOR_VERDICT} jobs on each side (--old, --new)"
)
_IS_BRIDGE = "the same configuration in both jobs: this is how much the two sessions differ"


def compare_jobs(
    before: MeasuredJob,
    after: MeasuredJob,
    confidence: float,
    margin: float,
    bridges: Collection[str] = (),
) -> Comparison:
    """Compare each variant of `after` with the one of the same name, host and workload in `before`.

    `bridges` are variants that have the same configuration in both jobs. Raises ConfigError if
    only one of the jobs is simulated: such a ratio would mean nothing.
    """
    (old, old_runs), (new, new_runs) = before, after
    check_question(confidence, margin)
    _check_engines([old, new])
    sets, old_sets = launch_sets(new_runs), launch_sets(old_runs)
    pairs = [(_cell(key, sets, new), _cell(key, old_sets, old)) for key in cell_keys(new_runs, new)]
    settings = _settings(new, new_runs, [cell for cell, _ in pairs], confidence, margin)
    if EXTERNAL in (old.engine, new.engine):
        settings = replace(settings, engine=EXTERNAL)
    rows = [
        row
        for cell, reference in pairs
        for row in _rows(_cell_pair(cell, reference, bridges), settings)
    ]
    result = make_comparison(new, old.job, settings.question, rows)
    notes = (*result.notes, *_unmatched_notes(old_sets, sets), *_time_scale_notes(old, new))
    return replace(result, notes=notes)


def _check_engines(conditions: Sequence[ComparisonConditions]) -> None:
    first = conditions[0]
    for other in conditions[1:]:
        if (first.engine == SIMULATED) != (other.engine == SIMULATED):
            raise ConfigError(
                f"job {first.job} ran on engine {first.engine}, and job {other.job} ran on "
                f"{other.engine}: simulated and real runs cannot be compared",
                "compare two jobs that ran on the same kind of engine",
            )


def _cell(
    key: tuple[str, str, str, bool],
    sets: dict[tuple[str, str, str], LaunchSet],
    conditions: ComparisonConditions,
) -> Cell:
    host, workload, metric, is_judged = key
    variants = unique_names(
        [variant for variant, _ in conditions.planned], [variant for variant, _, _ in sets]
    )
    members = {
        variant: sets[variant, host, workload]
        for variant in variants
        if (variant, host, workload) in sets
    }
    return Cell(host, workload, metric, "", members, is_judged)


def _settings(
    conditions: ComparisonConditions,
    runs: Sequence[StoredRun],
    cells: Sequence[Cell],
    confidence: float,
    margin: float,
) -> RowSettings:
    return RowSettings(
        Question(confidence, margin, judged_count(cells)),
        conditions.engine,
        minutes_per_launch(runs),
        conditions.failures,
    )


@dataclass(frozen=True, slots=True)
class _CellPair:
    """The same cell in both jobs. `bridge` is a variant with the same configuration in both and
    enough launches; empty if there is none.
    """

    cell: Cell
    reference: Cell
    bridge: str

    @property
    def tests(self) -> int:
        """Return the number of rows that may get a verdict."""
        return max(len(self.cell.launch_sets) - bool(self.bridge), 1)

    def fewest(self, variant: str) -> int:
        """Return the number of launches in the job that has fewer of them."""
        return min(len(self.cell.values(variant)), len(self.reference.values(variant)))

    def estimates(self) -> tuple[dict[str, RatioEstimate], dict[str, OpenEnds]]:
        """Return what can be said over the bridge, and how far it is open."""
        estimates: dict[str, RatioEstimate] = {}
        ends: dict[str, OpenEnds] = {}
        if self.bridge:
            (later, later_ends), (earlier, earlier_ends) = (
                estimates_of(replace(side, baseline=self.bridge))
                for side in (self.cell, self.reference)
            )
            for name in later.keys() & earlier.keys():
                estimates[name] = BridgeEstimate(
                    later[name].among([name]), earlier[name].among([name]), self.tests
                )
                ends[name] = later_ends.get(name, CLOSED).against(earlier_ends.get(name, CLOSED))
        return estimates, ends

    def why_open(self, variant: str, engine: str) -> str:
        """Return why there is no verdict on a variant."""
        if engine == EXTERNAL:
            return NO_LAUNCHES
        for side, name in ((self.reference, "first"), (self.cell, "second")):
            count = len(side.values(variant))
            if count < LAUNCHES_FOR_VERDICT:
                return (
                    f"{count or 'no'} valid launch{'es' if count > 1 else ''} in the {name} job: "
                    f"a verdict needs {LAUNCHES_FOR_VERDICT}"
                )
        return _IS_BRIDGE if variant == self.bridge else _NO_BRIDGE


def _cell_pair(cell: Cell, reference: Cell, bridges: Collection[str]) -> _CellPair:
    pair = _CellPair(cell, reference, "")
    usable = [
        name
        for name in cell.launch_sets
        if name in bridges and pair.fewest(name) >= LAUNCHES_FOR_VERDICT
    ]
    return replace(pair, bridge=usable[0] if usable else "")


def _rows(pair: _CellPair, settings: RowSettings) -> list[ComparisonRow]:
    cell = pair.cell
    estimates, ends = ({}, {}) if settings.engine == EXTERNAL else pair.estimates()
    rows = []
    for variant in cell.launch_sets:
        row = _plain_row(pair, variant, settings)
        if variant in estimates:
            row = with_estimate(row, estimates[variant], ends[variant], settings)
        rows.append(row)
    if not cell.is_judged:
        return [replace(row, is_judged=False) for row in rows]
    ready = {
        variant: estimate
        for variant, estimate in estimates.items()
        if pair.fewest(variant) >= LAUNCHES_FOR_VERDICT
    }
    outlook = Outlook(settings.minutes, len(cell.launch_sets))
    found = judge_cell(ready, settings.question, HIGHER_IS_BETTER[cell.metric], outlook, ends)
    return [
        replace(row, verdict=own.verdict, reason=own.reason, needs=own.needs)
        if (own := found.get(row.variant))
        else replace(
            row,
            verdict=Verdict.INCONCLUSIVE,
            reason=pair.why_open(row.variant, settings.engine),
        )
        for row in rows
    ]


def _plain_row(pair: _CellPair, variant: str, settings: RowSettings) -> ComparisonRow:
    """Return the row of a variant with its ratio to the same variant of the other job.

    Its interval takes the sessions as equal.
    """
    values, references = pair.cell.values(variant), pair.reference.values(variant)
    row = replace(plain_row(pair.cell, variant, settings), ratio=None)
    if pair.cell.is_search or not (values and references) or min(*values, *references) <= 0:
        return row
    row = replace(row, ratio=geometric_mean(values) / geometric_mean(references))
    estimate = welch_estimate(values, references, pair.tests)
    return row if settings.engine == EXTERNAL else with_estimate(row, estimate, CLOSED, settings)


def compare_job_groups(
    before: Sequence[MeasuredJob], after: Sequence[MeasuredJob], confidence: float, margin: float
) -> Comparison:
    """Compare several jobs before a change with several after it. One job is one value: the
    geometric mean of its launches.

    Raises ConfigError if a side has fewer than three jobs.
    """
    check_question(confidence, margin)
    for name, side in (("--old", before), ("--new", after)):
        if len(side) < JOBS_FOR_VERDICT:
            raise ConfigError(
                f"{name} has {len(side)} jobs, and {JOBS_FOR_VERDICT} are needed",
                "a verdict without a common variant needs to know how much whole jobs differ",
            )
    _check_engines([conditions for conditions, _ in (*before, *after)])
    newest, newest_runs = after[-1]
    keys = cell_keys(newest_runs, newest)
    old_cells, new_cells = (
        [[_cell(key, launch_sets(runs), conditions) for key in keys] for conditions, runs in side]
        for side in (before, after)
    )
    settings = _settings(newest, newest_runs, new_cells[-1], confidence, margin)
    rows = [
        row
        for place in range(len(keys))
        for row in _group_rows(
            [job[place] for job in old_cells], [job[place] for job in new_cells], settings
        )
    ]
    names = ", ".join(conditions.job for conditions, _ in before)
    return make_comparison(newest, names, settings.question, rows)


def _group_rows(
    before: Sequence[Cell], after: Sequence[Cell], settings: RowSettings
) -> list[ComparisonRow]:
    cell = after[-1]
    estimates: dict[str, RatioEstimate] = {}
    rows = []
    for variant in cell.launch_sets:
        values, references = _job_values(after, variant), _job_values(before, variant)
        row = plain_row(cell, variant, settings)
        if min(len(values), len(references)) >= JOBS_FOR_VERDICT:
            estimate = welch_estimate(values, references, len(cell.launch_sets))
            if estimate:
                estimates[variant] = estimate
                row = replace(with_estimate(row, estimate, CLOSED, settings), method="jobs")
        rows.append(row)
    if not cell.is_judged:
        return [replace(row, is_judged=False) for row in rows]
    found = judge_cell(
        estimates, settings.question, HIGHER_IS_BETTER[cell.metric], Outlook(in_blocks=False)
    )
    return [
        replace(row, verdict=own.verdict, reason=own.reason)
        if (own := found.get(row.variant))
        else replace(
            row,
            verdict=Verdict.INCONCLUSIVE,
            reason=f"fewer than {JOBS_FOR_VERDICT} jobs of a side have a valid launch",
        )
        for row in rows
    ]


def _job_values(cells: Sequence[Cell], variant: str) -> list[float]:
    """Return one value for each job in which the variant has a valid launch."""
    launches = [cell.values(variant) for cell in cells]
    return [geometric_mean(values) for values in launches if values and min(values) > 0]


def _unmatched_notes(
    old: dict[tuple[str, str, str], LaunchSet], new: dict[tuple[str, str, str], LaunchSet]
) -> list[str]:
    lost = sorted(old.keys() - new.keys())
    return [
        f"not in the second job: {variant} on {host or 'no host'}, workload {workload}"
        for variant, host, workload in lost
    ]


def _time_scale_notes(old: ComparisonConditions, new: ComparisonConditions) -> list[str]:
    if old.time_scale == new.time_scale:
        return []
    return [
        (
            f"time scales differ: {old.job} ran simulated ×{old.time_scale:g}, {new.job} "
            f"×{new.time_scale:g}"
        )
    ]
