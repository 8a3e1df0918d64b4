"""Formats the searches of a job: what each launch found, and the results of each load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_controller.analysis.slo_limits import SloLimit, all_limits, is_searched, load_text
from fleet_controller.analysis.statistics import mean
from fleet_controller.core.controller_api import StoredRun
from fleet_controller.report.comparison_export import limit_json
from fleet_controller.report.table import Table, as_markdown
from fleet_protos.metric_names import GOODPUT_RATIO, TPOT_P99, TTFT_P99
from fleet_protos.trial_types import is_void

BY_LAUNCH, BY_LOAD = (
    "the highest load that meets the SLO, by launch",
    "results of each load, over all launches",
)
_END_REASONS = {
    "": "continues",
    "found": "found",
    "above": "met at the highest load: the limit is open above",
    "below": "not met at the lowest load: the limit is open below",
    "client_limited": "ended: the client cannot drive a higher load",
    "unsettled": "ended: runs of the same load gave different results",
    "void_runs": "ended: void runs",
}


@dataclass(frozen=True, slots=True)
class LoadRuns:
    """All runs of one load of a search, over the launches of a variant on a host."""

    workload: str
    variant: str
    host: str
    of: str
    load: float
    runs: tuple[StoredRun, ...]

    @property
    def valid(self) -> list[StoredRun]:
        """The runs that are not void."""
        return [stored for stored in self.runs if not is_void(stored.run)]

    @property
    def met(self) -> int:
        """Return the number of valid runs that met the SLO."""
        return sum(stored.run.searched.met for stored in self.valid)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the valid runs, or None if none of them has it."""
        values = [
            stored.run.metrics[metric] for stored in self.valid if metric in stored.run.metrics
        ]
        return mean(values) if values else None


def group_by_load(runs: Sequence[StoredRun]) -> list[LoadRuns]:
    """Group runs by workload, variant and host in the order first seen. Within such a group, group
    them by load, ascending.
    """
    grouped: defaultdict[tuple[str, str, str], defaultdict[float, list[StoredRun]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for stored in filter(is_searched, runs):
        grouped[stored.run.workload, stored.variant, stored.host][stored.run.searched.load].append(
            stored
        )
    return [
        LoadRuns(*key, members[0].run.searched.of, load, tuple(members))
        for key, loads in grouped.items()
        for load, members in sorted(loads.items())
    ]


def limits_table(runs: Sequence[StoredRun]) -> Table:
    """Return one row for each launch, with the limits that its search found."""
    rows = tuple(
        (
            limit.trial_id,
            str(limit.attempt),
            limit.variant,
            limit.workload,
            load_text(limit.met, limit.of),
            load_text(limit.not_met, limit.of),
            str(limit.runs),
            _END_REASONS.get(limit.ended, limit.ended),
        )
        for limit in all_limits(runs)
    )
    columns = (
        "trial",
        "attempt",
        "variant",
        "workload",
        "highest met",
        "lowest not met",
        "runs",
        "search",
    )
    return Table(columns, rows, frozenset({"attempt", "highest met", "lowest not met", "runs"}))


def loads_table(runs: Sequence[StoredRun]) -> Table:
    """Return one row for each load of a variant, with the number of runs that met the SLO and the
    means over the runs.
    """
    rows = tuple(
        (
            load.workload,
            load.variant,
            load.host,
            load_text(load.load, load.of),
            _slo_answer(load),
            str(load.met),
            str(len(load.valid) - load.met),
            str(len(load.runs) - len(load.valid)),
            _cell(load.mean(GOODPUT_RATIO), lambda share: f"{share * 100:.1f} %"),
            _cell(load.mean(TTFT_P99), _ms),
            _cell(load.mean(TPOT_P99), _ms),
        )
        for load in group_by_load(runs)
    )
    if len({load[2] for load in rows}) < 2:
        rows = tuple((*row[:2], "", *row[3:]) for row in rows)
    columns = (
        "workload",
        "variant",
        "host",
        "load",
        "SLO",
        "met",
        "not met",
        "void",
        "goodput",
        "TTFT p99",
        "TPOT p99",
    )
    return Table(columns, rows, frozenset(columns[3:]) - {"SLO"}).without_empty(
        "host", "TTFT p99", "TPOT p99"
    )


def searches_markdown(runs: Sequence[StoredRun]) -> str:
    """Return the tables of limits and of loads under headings, or an empty text for a job without a
    search.
    """
    limits, loads = limits_table(runs), loads_table(runs)
    if not limits.rows:
        return ""
    return f"\n**{BY_LAUNCH}**\n\n{as_markdown(limits)}\n**{BY_LOAD}**\n\n{as_markdown(loads)}"


def _slo_answer(load: LoadRuns) -> str:
    """Return `met` or `not met` when all valid runs agree, else `mixed`. Return `–` without valid
    runs.
    """
    if not load.valid:
        return "–"
    return "met" if load.met == len(load.valid) else "not met" if not load.met else "mixed"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _cell(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def searches_json(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return the JSON of `searches` in the `show` contract of docs/json.md, with one entry for each
    launch and search.
    """
    return [_search_json(limit, runs) for limit in all_limits(runs)]


def _search_json(limit: SloLimit, runs: Sequence[StoredRun]) -> dict[str, Any]:
    key = (limit.trial_id, limit.attempt, limit.workload)
    own = [
        stored
        for stored in runs
        if is_searched(stored) and (stored.trial_id, stored.attempt, stored.run.workload) == key
    ]
    own.sort(key=lambda stored: stored.run.index)
    about = {
        "attempt": limit.attempt,
        "variant": limit.variant,
        "host": limit.host,
        "workload": limit.workload,
        "of": limit.of,
    }
    return {**limit_json(limit), **about, "runs": [_run_json(stored) for stored in own]}


def _run_json(stored: StoredRun) -> dict[str, Any]:
    run = stored.run
    answer = "void" if is_void(run) else "met" if run.searched.met else "not_met"
    goodput = run.metrics.get(GOODPUT_RATIO)
    counts = {"requests_ok": run.requests_ok, "requests_failed": run.requests_failed}
    return {
        "run": run.index,
        "load": run.searched.load,
        "answer": answer,
        "goodput": goodput,
        **counts,
    }
