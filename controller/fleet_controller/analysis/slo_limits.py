"""Owns what the searches of launches found, and how brackets are averaged and compared. Reads no
store, gives no verdict.

A bracket is a value known between bounds: every interval here holds what the true limits may be, so
it is open where one of them is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet_controller.analysis.launches import counted_attempts
from fleet_controller.analysis.statistics import (
    Interval,
    LogRatio,
    mean,
    mean_interval,
    paired_ratio,
    welch_ratio,
)
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import HIGHEST_CONCURRENCY, HIGHEST_RATE
from fleet_protos.search_types import CONCURRENCY, RATE

METRIC_OF: Mapping[str, str] = {RATE: HIGHEST_RATE, CONCURRENCY: HIGHEST_CONCURRENCY}


@dataclass(frozen=True, slots=True)
class SloLimit:
    """What the search of one launch found. `met`: the highest load met, 0 for none; `not_met`: the
    lowest not met, infinite for none.

    `ended` as `fleet_protos.search_types.Searched` tells it; empty while the search goes on.
    `runs`: those that are not void.
    """

    trial_id: str
    attempt: int
    variant: str
    host: str
    block: int
    workload: str
    of: str
    met: float
    not_met: float
    ended: str
    runs: int

    @property
    def most(self) -> float:
        """No limit is higher: of whole requests in flight the one before the lowest that is not
        met.
        """
        return self.not_met - 1 if self.of == CONCURRENCY else self.not_met

    @property
    def is_closed(self) -> bool:
        """Both ends are known."""
        return self.met > 0 and math.isfinite(self.not_met)


def is_searched(stored: StoredRun) -> bool:
    """The run is one of a search."""
    return stored.run.searched.load > 0


def all_limits(runs: Iterable[StoredRun]) -> list[SloLimit]:
    """One for each launch, attempt and search among the runs, in the order first seen, also of
    those that count for nothing.
    """
    grouped: dict[tuple[str, int, str], list[StoredRun]] = defaultdict(list)
    for stored in runs:
        if is_searched(stored):
            grouped[stored.trial_id, stored.attempt, stored.run.workload].append(stored)
    return [_limit(members) for members in grouped.values()]


def finished_limits(runs: Iterable[StoredRun]) -> list[SloLimit]:
    """The same of the attempts that count, and of searches that ended."""
    return [limit for limit in all_limits(counted_attempts(runs)) if limit.ended]


def _limit(members: Sequence[StoredRun]) -> SloLimit:
    last = max(members, key=lambda stored: stored.run.index)
    searched = last.run.searched
    return SloLimit(
        last.trial_id, last.attempt, last.variant, last.host, last.block, last.run.workload, searched.of,
        searched.highest_met, searched.lowest_not_met or math.inf, searched.ended, sum(not stored.run.void for stored in members),
    )  # fmt: skip


def open_notes(limits: Sequence[SloLimit]) -> list[str]:
    """One line for each way in which searches of a variant left their limit open, or ended before
    it was settled.
    """
    notes = []
    for ended, text in _ENDINGS.items():
        members = [limit for limit in limits if limit.ended == ended]
        if members:
            loads = ", ".join(
                dict.fromkeys(
                    load_text(limit.not_met if ended == "below" else limit.met, limit.of)
                    for limit in members
                )
            )
            place = " ".join(
                part
                for part in (members[0].variant, members[0].workload, f"on {members[0].host}")
                if part
            )
            notes.append(f"{place}, {len(members)} of {len(limits)} launches: {text.format(loads)}")
    return notes


_ENDINGS = {
    "above": "the SLO was met at the highest load of the search, {0}: the limit is there or beyond; raise `to`",
    "below": "the SLO was not met at the lowest load of the search, {0}: the limit is below; lower `from`, or see what those runs say",
    "client_limited": "the client could not drive the next load, and the SLO was met at {0}: the limit is there or beyond; use load hosts",
    "unsettled": "runs of the same load went one way and the other until there were too many: sure is {0}; longer runs say more",
}


def load_text(load: float, of: str) -> str:
    """`12.3/s`, or `12 at once`; a dash for none."""
    if not 0 < load < math.inf:
        return "–"
    return f"{load:.0f} at once" if of == CONCURRENCY else f"{load:.4g}/s"


def mean_limit(
    limits: Sequence[SloLimit], confidence: float
) -> tuple[float | None, Interval | None]:
    """(mean, interval) of the highest load over launches: that of the loads met, further up by what
    the brackets leave open on average.
    """
    value = (
        mean([limit.met for limit in limits])
        if limits and all(limit.is_closed for limit in limits)
        else None
    )
    low = mean_interval([limit.met for limit in limits], confidence)
    if low is None:
        return value, None
    if any(not limit.met for limit in limits):
        high = (
            mean_interval([limit.most for limit in limits], confidence)
            if _all_bounded(limits)
            else None
        )
        return value, Interval(0.0, high.high if high else math.inf)
    return value, Interval(low.low, low.high + mean([limit.most - limit.met for limit in limits]))


def limit_ratio(
    ours: Sequence[SloLimit], theirs: Sequence[SloLimit], confidence: float, *, may_pair: bool
) -> tuple[LogRatio | None, str]:
    """The ratio of the highest loads, and how it came about: `paired` by block where two blocks
    hold both, else `unpaired`.
    """
    blocks = {limit.block: limit for limit in theirs if limit.block > 0}
    pairs = [(limit, blocks[limit.block]) for limit in ours if may_pair and limit.block in blocks]
    if len(pairs) >= 2:
        return _ratio_between(
            [one for one, _ in pairs], [other for _, other in pairs], confidence, paired=True
        ), "paired"
    return _ratio_between(ours, theirs, confidence, paired=False), "unpaired"


def _ratio_between(
    ours: Sequence[SloLimit], theirs: Sequence[SloLimit], confidence: float, *, paired: bool
) -> LogRatio | None:
    """By the loads met where all are known; else from the one end that is."""
    is_met, is_bounded = (
        _all_met(ours) and _all_met(theirs),
        _all_bounded(ours) and _all_bounded(theirs),
    )
    if is_met and is_bounded:
        estimate = _ratio(
            [one.met for one in ours], [one.met for one in theirs], confidence, paired=paired
        )
        return estimate and replace(
            estimate, open_below=_open_log_width(theirs), open_above=_open_log_width(ours)
        )
    if _all_met(ours) and _all_bounded(theirs):
        estimate = _ratio(
            [one.met for one in ours], [one.most for one in theirs], confidence, paired=paired
        )
        return estimate and replace(estimate, open_above=math.inf)
    if _all_bounded(ours) and _all_met(theirs):
        estimate = _ratio(
            [one.most for one in ours], [one.met for one in theirs], confidence, paired=paired
        )
        return estimate and replace(estimate, open_below=math.inf)
    return None


def _ratio(
    values: list[float], references: list[float], confidence: float, *, paired: bool
) -> LogRatio | None:
    if paired:
        return paired_ratio(list(zip(values, references, strict=True)), confidence)
    return welch_ratio(values, references, confidence)


def _all_met(limits: Sequence[SloLimit]) -> bool:
    return all(limit.met > 0 for limit in limits)


def _all_bounded(limits: Sequence[SloLimit]) -> bool:
    return all(0 < limit.most < math.inf for limit in limits)


def _open_log_width(limits: Sequence[SloLimit]) -> float:
    """What the brackets leave open, on the log scale."""
    return mean([math.log(limit.most / limit.met) for limit in limits])
