"""Owns the step from stored runs to launches: which attempt counts, which runs are valid, which
gates tripped. Computes no interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleet_controller.analysis.statistics import mean
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import ACCEPT_LENGTH
from fleet_protos.trial_types import Gate, GateEffect, Outcome

WARMING_UP = Gate(
    "warming_up",
    GateEffect.VOID_RUN,
    "not steady yet, as later runs of the same launch showed: kept, and part of no number",
)


@dataclass(frozen=True, slots=True)
class GateCount:
    """How often a gate tripped, what it said the last time, and the codes of all ways in which it
    did.
    """

    code: str
    count: int
    message: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch of a variant under one workload: the independent unit. `values` and `runs` hold
    valid runs only.
    """

    variant: str
    host: str
    block: int
    workload: str
    values: dict[str, float]
    runs: dict[str, int]


def without_warm_up(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """All runs, those voided that belong to the warm-up of their launch by what the newest valid
    run of that workload says.
    """
    runs = list(runs)
    valid: dict[tuple[str, int, str], list[int]] = defaultdict(
        list
    )  # launch and workload → places of its valid runs
    for place in sorted(range(len(runs)), key=lambda place: runs[place].run.index):
        if not runs[place].run.void:
            valid[runs[place].trial_id, runs[place].attempt, runs[place].run.workload].append(place)
    for places in valid.values():
        for place in places[: runs[places[-1]].run.warm_up_runs]:
            run = runs[place].run
            runs[place] = replace(runs[place], run=replace(run, gates=(WARMING_UP, *run.gates)))
    return runs


def counted_attempts(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """The runs of the newest attempt that ended OK, trial by trial; nothing else becomes a number."""
    runs = list(runs)
    newest: dict[str, int] = {}
    for stored in runs:
        if stored.trial_outcome == Outcome.OK:
            newest[stored.trial_id] = max(stored.attempt, newest.get(stored.trial_id, 0))
    return [stored for stored in runs if newest.get(stored.trial_id) == stored.attempt]


def launches_of(runs: Iterable[StoredRun], metrics: Sequence[str]) -> list[MeasuredLaunch]:
    """One launch per trial and workload, each metric's mean over the valid runs that have it, in
    the order first seen.
    """
    grouped: dict[tuple[str, str], list[StoredRun]] = defaultdict(list)
    for stored in counted_attempts(runs):
        if (
            not stored.run.void and not stored.run.searched.load
        ):  # runs of a search are of many loads
            grouped[stored.trial_id, stored.run.workload].append(stored)
    return [_launch(members, metrics) for members in grouped.values()]


def _launch(members: Sequence[StoredRun], metrics: Sequence[str]) -> MeasuredLaunch:
    values, runs = {}, {}
    for metric in (*metrics, ACCEPT_LENGTH):
        present = [stored.run.metrics[metric] for stored in members if metric in stored.run.metrics]
        if present:
            values[metric], runs[metric] = mean(present), len(present)
    first = members[0]
    return MeasuredLaunch(first.variant, first.host, first.block, first.run.workload, values, runs)


def gate_counts(runs: Iterable[StoredRun]) -> tuple[GateCount, ...]:
    """Gates over all runs given, voided and failed ones too: what was kept out is told. The most
    frequent first.
    """
    counts: dict[str, GateCount] = {}
    for stored in runs:
        for gate in stored.run.gates:
            if gate.effect != GateEffect.UNSPECIFIED:
                before = counts.get(gate.code, GateCount(gate.code, 0, ""))
                reasons = tuple(dict.fromkeys((*before.reasons, *gate.reasons)))
                counts[gate.code] = GateCount(gate.code, before.count + 1, gate.message, reasons)
    return tuple(sorted(counts.values(), key=lambda gate: (-gate.count, gate.code)))


def minutes_per_launch(runs: Iterable[StoredRun]) -> float | None:
    """Wall minutes that one launch takes: the median distance of neighbouring launches' first runs
    on one host.

    It holds the load, the runs and the stop. With one launch a host it is the runs' own time, a
    lower bound; None without runs.
    """
    first: dict[tuple[str, str, int], int] = {}
    busy_s: dict[tuple[str, str, int], float] = defaultdict(float)
    for stored in runs:
        key = (stored.host, stored.trial_id, stored.attempt)
        first[key] = min(first.get(key, stored.run.started_unix_ns), stored.run.started_unix_ns)
        busy_s[key] += stored.run.duration_s / stored.run.time_scale
    by_host: dict[str, list[int]] = defaultdict(list)
    for (host, _trial, _attempt), started in first.items():
        by_host[host].append(started)
    gaps = sorted(
        (later - earlier) / 1e9
        for starts in by_host.values()
        for earlier, later in zip(sorted(starts)[:-1], sorted(starts)[1:], strict=True)
    )
    lengths = gaps or sorted(busy_s.values())
    return lengths[len(lengths) // 2] / 60 if lengths and lengths[-1] > 0 else None
