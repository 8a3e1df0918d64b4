"""Groups stored runs into launches. Finds the attempts that count and the valid runs, and counts
the gates that tripped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleet_controller.analysis.statistics import geometric_mean, mean
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import ACCEPT_LENGTH
from fleet_protos.trial_types import Gate, GateEffect, Outcome, is_void

WARMING_UP = Gate(
    "warming_up",
    GateEffect.VOID_RUN,
    "later runs of the same launch showed that this run was not steady yet: it is kept, but it is "
    "not part of any result",
)


@dataclass(frozen=True, slots=True)
class GateCount:
    """How often a gate tripped, its last message, the codes of all its reasons, and how many of the
    runs it voided. In the other runs it is a flag: they count.
    """

    code: str
    count: int
    message: str
    reasons: tuple[str, ...] = ()
    voided: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch of a variant under one workload. It is the independent unit of the statistics.
    `values` and `runs` cover only valid runs.
    """

    variant: str
    host: str
    block: int
    workload: str
    values: dict[str, float]
    runs: dict[str, int]


def without_warm_up(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Return all runs, with the warm-up runs of each launch made void. The newest valid run of a
    workload reports how many runs of its launch are warm-up.
    """
    runs = list(runs)
    valid: dict[tuple[str, int, str], list[int]] = defaultdict(
        list
    )  # launch and workload → indexes of its valid runs
    for place in sorted(range(len(runs)), key=lambda place: runs[place].run.index):
        if not is_void(runs[place].run):
            valid[runs[place].trial_id, runs[place].attempt, runs[place].run.workload].append(place)
    for places in valid.values():
        for place in places[: runs[places[-1]].run.warm_up_runs]:
            run = runs[place].run
            runs[place] = replace(runs[place], run=replace(run, gates=(WARMING_UP, *run.gates)))
    return runs


def counted_attempts(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Return the runs of each trial's newest attempt that ended OK. Only these runs become
    numbers.
    """
    runs = list(runs)
    newest: dict[str, int] = {}
    for stored in runs:
        if stored.trial_outcome == Outcome.OK:
            newest[stored.trial_id] = max(stored.attempt, newest.get(stored.trial_id, 0))
    return [stored for stored in runs if newest.get(stored.trial_id) == stored.attempt]


def group_launches(runs: Iterable[StoredRun], metrics: Sequence[str]) -> list[MeasuredLaunch]:
    """Return one launch per trial and workload in the order first seen, with each metric's
    geometric mean over the valid runs that have it.
    """
    grouped: dict[tuple[str, str], list[StoredRun]] = defaultdict(list)
    for stored in counted_attempts(runs):
        if (
            not is_void(stored.run) and not stored.run.searched.load
        ):  # runs of a search have different loads
            grouped[stored.trial_id, stored.run.workload].append(stored)
    return [_launch(members, metrics) for members in grouped.values()]


def _launch(members: Sequence[StoredRun], metrics: Sequence[str]) -> MeasuredLaunch:
    values, runs = {}, {}
    for metric in (*metrics, ACCEPT_LENGTH):
        present = [stored.run.metrics[metric] for stored in members if metric in stored.run.metrics]
        if present:
            average = geometric_mean if min(present) > 0 else mean
            values[metric], runs[metric] = average(present), len(present)
    first = members[0]
    return MeasuredLaunch(first.variant, first.host, first.block, first.run.workload, values, runs)


def gate_counts(runs: Iterable[StoredRun]) -> tuple[GateCount, ...]:
    """Count the gates of all given runs, and put the most frequent gate first. Void and failed runs
    count too, so that a report shows what was excluded.
    """
    counts: dict[str, GateCount] = {}
    for stored in runs:
        for gate in stored.run.gates:
            if gate.effect != GateEffect.UNSPECIFIED:
                before = counts.get(gate.code, GateCount(gate.code, 0, ""))
                reasons = tuple(dict.fromkeys((*before.reasons, *gate.reasons)))
                voided = before.voided + (gate.effect >= GateEffect.VOID_RUN)
                counts[gate.code] = GateCount(
                    gate.code, before.count + 1, gate.message, reasons, voided
                )
    return tuple(sorted(counts.values(), key=lambda gate: (-gate.count, gate.code)))


def minutes_per_launch(runs: Iterable[StoredRun]) -> float | None:
    """Return the wall minutes that one launch takes. This is the median time between the first runs
    of neighbouring launches on one host.

    It includes loading, the runs and stopping. With one launch per host it is only the time of the
    runs, which is a lower bound. Return None without runs.
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
