"""Owns the search for the highest load that meets an SLO: which load is next by the runs so far,
and what a run says of its load. Pure.

Doubling from the lowest load until one is not met, then halving the bracket on a logarithmic scale,
so that all variants of a job visit the same loads. A run that misses is measured again at once and
one that meets only where it becomes the result, because what goes wrong by chance makes runs worse,
hardly ever better. The reasons: docs/decisions/0017, docs/statistics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fleet_agent.core.gates import DISPATCH_DELAY, LOOP_LAG
from fleet_agent.core.stop_rule import VOID_IN_ROW_MAX
from fleet_protos.metric_names import DISPATCH_DELAY_P99, GOODPUT_RATIO, TPOT_P50, TTFT_P50
from fleet_protos.search_types import CONCURRENCY, Search, Searched
from fleet_protos.trial_types import Gate, GateEffect, RunResult, Workload

FOUND: Final = "found"
ABOVE: Final = "above"  # the highest load was met
BELOW: Final = "below"  # the lowest load was not
CLIENT: Final = "client_limited"  # the client could not drive a load
UNSETTLED: Final = "unsettled"  # so many runs that it ended with what it knew
VOID_RUNS: Final = "void_runs"  # runs that tell nothing, one after the other: the trial fails

_DECIDED = 2  # equal answers
_DIGITS = 4  # of a load
_EXACT = 1e-9
_LATE_SHARE = (
    0.1  # of the limit on the time to first token: sends that are later may be why it was not kept
)
# Ways in which a request fails that a server under too much load shows. The others may be ours, or
# have nothing to do with load.
_OVERLOADED = frozenset({"http_status", "server_error", "reset", "truncated", "timeout", "stalled"})


class LoadAnswer(Enum):
    """What a run says of its load."""

    MET = "met"
    NOT_MET = "not_met"
    VOID = "void"
    CLIENT_LIMITED = "client_limited"  # void, by what the client could do


@dataclass(frozen=True, slots=True)
class SearchRun:
    """One run of a search, as the next load depends on it."""

    load: float
    answer: LoadAnswer


@dataclass(frozen=True, slots=True)
class NextLoad:
    """`load` is to be measured next, 0 when the search has `ended`. `highest_met` and
    `lowest_not_met`: loads, 0 where there is none.
    """

    load: float = 0.0
    highest_met: float = 0.0
    lowest_not_met: float = 0.0
    ended: str = ""


def to_search_run(run: RunResult) -> SearchRun:
    """What the next load depends on of a run that `judged` has seen."""
    if not run.void:
        return SearchRun(
            run.searched.load, LoadAnswer.MET if run.searched.met else LoadAnswer.NOT_MET
        )
    by_client = any(
        gate.code == "client_limited" and gate.effect >= GateEffect.VOID_RUN for gate in run.gates
    )
    return SearchRun(run.searched.load, LoadAnswer.CLIENT_LIMITED if by_client else LoadAnswer.VOID)


def next_repeat(load: float, runs: Sequence[SearchRun]) -> int:
    """How many runs of this load there will have been with the next one: what decides its arrivals,
    whatever came between.
    """
    return 1 + sum(one.load == load for one in runs)


def judge_search_run(
    run: RunResult, workload: Workload, error_kinds: Mapping[str, int], before: Sequence[SearchRun]
) -> RunResult:
    """The run with its answer, its gates as they hold in a search, and what is known after it.

    `workload`: at the load of the run. `error_kinds`: of the requests that failed. `before`: the
    runs of the search until then.
    """
    search, load = workload.search, workload.load
    met = share_met(run) >= search.goodput - _EXACT and not any(
        gate.code == "rate_not_sustained" for gate in run.gates
    )
    gates = tuple(_gate_in_search(gate, run, error_kinds) for gate in run.gates)
    if not met:
        gates = tuple(_gate_of_missed_run(gate, run, workload) for gate in gates)
    run = replace(run, gates=gates, searched=Searched(load, met))
    after = next_load(search, (*before, to_search_run(run)))
    met = met and not run.void
    return replace(
        run,
        searched=Searched(
            load, met, after.highest_met, after.lowest_not_met, after.ended, search.of
        ),
    )


def share_met(run: RunResult) -> float:
    """Of all its requests, those that met the SLO; one that failed did not."""
    requests = run.requests_ok + run.requests_failed
    return run.metrics.get(GOODPUT_RATIO, 0.0) * run.requests_ok / requests if requests else 0.0


def _gate_in_search(gate: Gate, run: RunResult, error_kinds: Mapping[str, int]) -> Gate:
    """Requests that failed under load are an answer."""
    if gate.code == "requests_failed" and run.requests_ok and error_kinds.keys() <= _OVERLOADED:
        return replace(
            gate,
            effect=GateEffect.FLAG,
            message=f"{gate.message}; they count as not meeting the SLO",
        )
    return gate


def _gate_of_missed_run(gate: Gate, run: RunResult, workload: Workload) -> Gate:
    """What the client may have caused is no answer. Where half of the requests missed by more than
    it was late, it did not.
    """
    if gate.code != "client_limited":
        return gate
    slo, late_s = workload.slo, run.metrics.get(DISPATCH_DELAY_P99, 0.0)
    slow_start = slo.ttft_p99_s and run.metrics.get(TTFT_P50, 0.0) > slo.ttft_p99_s + late_s
    if slow_start or (slo.tpot_p99_s and run.metrics.get(TPOT_P50, 0.0) > slo.tpot_p99_s):
        message = f"{gate.message}; half of the requests missed the SLO by more than that"
        return replace(gate, effect=min(gate.effect, GateEffect.FLAG), message=message)
    matters = late_s > _LATE_SHARE * (slo.ttft_p99_s or math.inf)
    if not set(gate.reasons) - {LOOP_LAG} - (set() if matters else {DISPATCH_DELAY}):
        return gate
    message = f"{gate.message}; the SLO was not met, which may be the client's doing"
    return replace(gate, effect=max(gate.effect, GateEffect.VOID_RUN), message=message)


@dataclass(frozen=True, slots=True)
class _Tally:
    """The answers so far, load by load."""

    counts: Mapping[tuple[float, LoadAnswer], int]
    loads: tuple[float, ...]
    last: Mapping[
        float, Sequence[LoadAnswer]
    ]  # of each load, as many as void runs in a row end something

    @classmethod
    def from_runs(cls, runs: Sequence[SearchRun]) -> _Tally:
        loads = tuple(sorted({one.load for one in runs}))
        last = {
            load: [one.answer for one in runs if one.load == load][-VOID_IN_ROW_MAX:]
            for load in loads
        }
        return cls(Counter((one.load, one.answer) for one in runs), loads, last)

    def count(self, load: float, answer: LoadAnswer) -> int:
        return self.counts.get((load, answer), 0)

    def is_client_limited(self, load: float) -> bool:
        """The client cannot drive it."""
        return self.last[load] == [LoadAnswer.CLIENT_LIMITED] * VOID_IN_ROW_MAX

    def is_missed(self, load: float) -> bool:
        return self.count(load, LoadAnswer.NOT_MET) >= _DECIDED

    def is_met(self, load: float) -> bool:
        """By what is known: nothing speaks against it, or two of three."""
        return self.count(load, LoadAnswer.MET) > self.count(load, LoadAnswer.NOT_MET)

    def is_confirmed(self, load: float) -> bool:
        return self.count(load, LoadAnswer.MET) >= _DECIDED

    def is_undecided(self, load: float) -> bool:
        return not (self.is_met(load) or self.is_missed(load) or self.is_client_limited(load))


def next_load(search: Search, runs: Sequence[SearchRun]) -> NextLoad:
    """What follows on these runs. Ends after `search.most_runs` at the latest, and never leaves
    `search.least` to `search.most`.
    """
    tally = _Tally.from_runs(runs)
    lowest = min((load for load in tally.loads if tally.is_missed(load)), default=0.0)
    met = [load for load in tally.loads if tally.is_met(load) and not tally.is_client_limited(load)]
    highest = max(met, default=0.0)
    confirmed = max(filter(tally.is_confirmed, met), default=0.0)
    client_limited = min(filter(tally.is_client_limited, tally.loads), default=0.0)
    blocked = (
        bool(client_limited) and not 0 < lowest < client_limited
    )  # above a load that is not met it decides nothing
    if _is_given_up(runs) or (blocked and not highest):
        return NextLoad(0.0, confirmed, lowest, VOID_RUNS)
    undecided = next(filter(tally.is_undecided, tally.loads), 0.0)
    following, ended = (
        (undecided, "")
        if undecided
        else _choose_next(search, highest, lowest, blocked=blocked, any_run=bool(runs))
    )
    if ended and highest and not tally.is_confirmed(highest):
        following, ended = highest, ""
    if not ended and len(runs) >= search.max_runs:
        return NextLoad(0.0, confirmed, lowest, UNSETTLED)
    return NextLoad(0.0 if ended else following, highest, lowest, ended)


def _is_given_up(runs: Sequence[SearchRun]) -> bool:
    last = runs[-VOID_IN_ROW_MAX:]
    void = [one.answer in (LoadAnswer.VOID, LoadAnswer.CLIENT_LIMITED) for one in last]
    return (
        len(last) == VOID_IN_ROW_MAX
        and all(void)
        and any(one.answer is LoadAnswer.VOID for one in last)
    )


def _choose_next(
    search: Search, highest: float, lowest: float, *, blocked: bool, any_run: bool
) -> tuple[float, str]:
    """(next load, how the search has ended) when every load that was measured is decided."""
    if not any_run:
        return search.least, ""
    if not highest:
        return 0.0, BELOW
    if blocked:
        return 0.0, CLIENT
    if not lowest:
        return (min(2 * highest, search.most), "") if highest < search.most else (0.0, ABOVE)
    middle = _middle(search, highest, lowest)
    return (middle, "") if middle else (0.0, FOUND)


def _middle(search: Search, low: float, high: float) -> float:
    """The load half-way on a logarithmic scale, in whole requests or to four digits; 0 when the
    bracket is narrow enough.
    """
    if high <= low * (1 + search.within) * (1 + _EXACT):
        return 0.0
    middle = math.sqrt(low * high)
    if search.of == CONCURRENCY:
        return float(min(max(round(middle), low + 1), high - 1)) if high - low > 1 else 0.0
    short = float(f"{middle:.{_DIGITS}g}")
    return short if low < short < high else middle
