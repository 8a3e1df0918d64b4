"""Searches for the highest load that meets an SLO: judges each run and chooses the next load.

The search begins at the lowest load and doubles it until the SLO is not met. Then it halves the
bracket on a logarithmic scale. All variants of a job therefore visit the same loads. A run that
misses the SLO is repeated at once. A run that meets the SLO is repeated only if its load becomes
the result, because chance makes a run worse but hardly ever better. See docs/decisions/0017 and
docs/statistics.md.
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
from fleet_protos.search_rules import CONCURRENCY, max_runs
from fleet_protos.trial_types import (
    Gate,
    GateEffect,
    RunResult,
    Search,
    Searched,
    Workload,
    is_void,
)
from fleet_protos.workload_rules import load_of

FOUND: Final = "found"
ABOVE: Final = "above"  # the highest load meets the SLO
BELOW: Final = "below"  # the lowest load does not meet the SLO
CLIENT: Final = "client_limited"  # the client could not drive a load
UNSETTLED: Final = "unsettled"  # the search reached its maximum number of runs
VOID_RUNS: Final = "void_runs"  # too many void runs in a row: the trial fails

_DECIDED = 2  # equal answers that decide a load
_LOWEST_DECIDED = 3  # misses of the lowest load that end the search without a result
_DIGITS = 4  # significant digits of a load
_EXACT = 1e-9  # relative tolerance for rounding
# Share of the limit on the time to first token: sends later than this may be why it was missed
_LATE_SHARE = 0.1
# Error kinds that an overloaded server shows. The others may be the client's fault, or have nothing
# to do with load.
_OVERLOADED = frozenset({"http_status", "server_error", "reset", "truncated", "timeout", "stalled"})


class LoadAnswer(Enum):
    """Says whether a run met the SLO at its load."""

    MET = "met"
    NOT_MET = "not_met"
    VOID = "void"
    CLIENT_LIMITED = "client_limited"  # void because the client was the limit


@dataclass(frozen=True, slots=True)
class SearchRun:
    """Holds the facts about a run that the choice of the next load depends on."""

    load: float
    answer: LoadAnswer


@dataclass(frozen=True, slots=True)
class NextLoad:
    """Describes the next step of a search.

    `load` is the load to measure next, 0 if the search has ended. `ended` says how the search ended
    and is empty before. `highest_met` and `lowest_not_met` are loads, 0 if there is no such load.
    """

    load: float = 0.0
    highest_met: float = 0.0
    lowest_not_met: float = 0.0
    ended: str = ""


def to_search_run(run: RunResult) -> SearchRun:
    """Return the facts that the next load depends on, from a run
    that `judge_search_run` returned.
    """
    if not is_void(run):
        return SearchRun(
            run.searched.load, LoadAnswer.MET if run.searched.met else LoadAnswer.NOT_MET
        )
    by_client = any(
        gate.code == "client_limited" and gate.effect >= GateEffect.VOID_RUN for gate in run.gates
    )
    return SearchRun(run.searched.load, LoadAnswer.CLIENT_LIMITED if by_client else LoadAnswer.VOID)


def next_repeat(load: float, runs: Sequence[SearchRun]) -> int:
    """Return the number of the next run at this load, counted from 1.

    The number is part of the seed of the requests. The n-th run at a load therefore sends the same
    requests, whichever loads were measured before.
    """
    return 1 + sum(one.load == load for one in runs)


def judge_search_run(
    run: RunResult, workload: Workload, error_kinds: Mapping[str, int], before: Sequence[SearchRun]
) -> RunResult:
    """Return the run with three things added: whether it met the SLO, its gates as they apply in a
    search, and the bracket of the search so far.

    `workload` is set to the load of the run. `error_kinds` counts the failed requests by kind.
    `before` holds the earlier runs of the search.
    """
    search, load = workload.search, load_of(workload)
    met = share_met(run) >= search.goodput - _EXACT and not any(
        gate.code == "rate_not_sustained" for gate in run.gates
    )
    gates = tuple(_gate_in_search(gate, run, error_kinds) for gate in run.gates)
    if not met:
        gates = tuple(_gate_of_missed_run(gate, run, workload) for gate in gates)
    run = replace(run, gates=gates, searched=Searched(load, met))
    after = next_load(search, (*before, to_search_run(run)))
    met = met and not is_void(run)
    return replace(
        run,
        searched=Searched(
            load, met, after.highest_met, after.lowest_not_met, after.ended, search.of
        ),
    )


def share_met(run: RunResult) -> float:
    """Return the share of a run's requests that met the SLO. A failed request counts as not meeting
    the SLO.
    """
    requests = run.requests_ok + run.requests_failed
    return run.metrics.get(GOODPUT_RATIO, 0.0) * run.requests_ok / requests if requests else 0.0


def _gate_in_search(gate: Gate, run: RunResult, error_kinds: Mapping[str, int]) -> Gate:
    """Return the gate as it applies in a search. Failed requests only flag the run if all of them
    show an overloaded server: such a run has an answer, the SLO was not met.
    """
    if gate.code == "requests_failed" and run.requests_ok and error_kinds.keys() <= _OVERLOADED:
        return replace(
            gate,
            effect=GateEffect.FLAG,
            message=f"{gate.message}; they count as not meeting the SLO",
        )
    return gate


def _gate_of_missed_run(gate: Gate, run: RunResult, workload: Workload) -> Gate:
    """Return the gate as it applies to a run that missed the SLO. The run is void if the client may
    have been the cause.

    The client is not the cause if half of the requests missed the SLO by more than the client was
    late. The gate then stays a flag.
    """
    if gate.code != "client_limited":
        return gate
    slo, late_s = workload.slo, run.metrics.get(DISPATCH_DELAY_P99, 0.0)
    slow_start = slo.ttft_p99_s and run.metrics.get(TTFT_P50, 0.0) > slo.ttft_p99_s + late_s
    if slow_start or (slo.tpot_p99_s and run.metrics.get(TPOT_P50, 0.0) > slo.tpot_p99_s):
        message = (
            f"{gate.message}; half of the requests missed the SLO by more than the client's delay"
        )
        return replace(gate, effect=min(gate.effect, GateEffect.FLAG), message=message)
    matters = late_s > _LATE_SHARE * (slo.ttft_p99_s or math.inf)
    if not set(gate.reasons) - {LOOP_LAG} - (set() if matters else {DISPATCH_DELAY}):
        return gate
    message = f"{gate.message}; the SLO was not met, possibly because of the client"
    return replace(gate, effect=max(gate.effect, GateEffect.VOID_RUN), message=message)


@dataclass(frozen=True, slots=True)
class _Tally:
    """Counts the answers of a search so far. `last` holds the newest `VOID_IN_ROW_MAX` answers at
    each load. `least` is the lowest load of the search.
    """

    least: float
    counts: Mapping[tuple[float, LoadAnswer], int]
    loads: tuple[float, ...]
    last: Mapping[float, Sequence[LoadAnswer]]

    @classmethod
    def from_runs(cls, least: float, runs: Sequence[SearchRun]) -> _Tally:
        loads = tuple(sorted({one.load for one in runs}))
        last = {
            load: [one.answer for one in runs if one.load == load][-VOID_IN_ROW_MAX:]
            for load in loads
        }
        return cls(least, Counter((one.load, one.answer) for one in runs), loads, last)

    def count(self, load: float, answer: LoadAnswer) -> int:
        return self.counts.get((load, answer), 0)

    def is_client_limited(self, load: float) -> bool:
        """Return whether the client cannot drive the load."""
        return self.last[load] == [LoadAnswer.CLIENT_LIMITED] * VOID_IN_ROW_MAX

    def is_missed(self, load: float) -> bool:
        """Return whether the misses decide the load. The lowest load needs one more: below it
        nothing is searched, so two bad runs in a row must not cost the launch its result.
        """
        needed = _LOWEST_DECIDED if load == self.least else _DECIDED
        return self.count(load, LoadAnswer.NOT_MET) >= needed and not self.is_met(load)

    def is_met(self, load: float) -> bool:
        """Return whether more runs at this load met the SLO than missed the SLO."""
        return self.count(load, LoadAnswer.MET) > self.count(load, LoadAnswer.NOT_MET)

    def is_confirmed(self, load: float) -> bool:
        return self.count(load, LoadAnswer.MET) >= _DECIDED

    def is_undecided(self, load: float) -> bool:
        return not (self.is_met(load) or self.is_missed(load) or self.is_client_limited(load))


def next_load(search: Search, runs: Sequence[SearchRun]) -> NextLoad:
    """Choose the load that follows after `runs`, or end the search.

    All loads are between `search.least` and `search.most`. The search ends after
    `max_runs(search)` runs at the latest.
    """
    tally = _Tally.from_runs(search.least, runs)
    lowest = min((load for load in tally.loads if tally.is_missed(load)), default=0.0)
    met = [load for load in tally.loads if tally.is_met(load) and not tally.is_client_limited(load)]
    highest = max(met, default=0.0)
    confirmed = max(filter(tally.is_confirmed, met), default=0.0)
    client_limited = min(filter(tally.is_client_limited, tally.loads), default=0.0)
    # the client's limit does not matter above a load that misses the SLO
    blocked = bool(client_limited) and not 0 < lowest < client_limited
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
    if not ended and len(runs) >= max_runs(search):
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
    """Return (next load, how the search ended). Every load that was measured must be decided."""
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
    """Return the middle of the bracket on a logarithmic scale. Return 0 if the bracket is narrow
    enough.

    The middle is a whole number of requests in flight, or a rate with four significant digits.
    """
    if high <= low * (1 + search.within) * (1 + _EXACT):
        return 0.0
    middle = math.sqrt(low * high)
    if search.of == CONCURRENCY:
        return float(min(max(round(middle), low + 1), high - 1)) if high - low > 1 else 0.0
    short = float(f"{middle:.{_DIGITS}g}")
    return short if low < short < high else middle
