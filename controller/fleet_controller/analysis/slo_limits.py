"""Averages and compares the limits that searches found.

A limit is a bracket: a value known between two bounds. Every interval includes all possible values
of the true limits. The interval is open if one of the limits is open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet_controller.analysis.cell_model import LaunchValue
from fleet_controller.analysis.launches import counted_attempts
from fleet_controller.analysis.ratio_estimates import (
    RatioEstimate,
    cell_estimates,
    pair_estimate,
    welch_estimate,
)
from fleet_controller.analysis.statistics import Interval, mean, mean_interval
from fleet_controller.analysis.verdict import OpenEnds
from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import HIGHEST_CONCURRENCY, HIGHEST_RATE
from fleet_protos.search_rules import CONCURRENCY, RATE
from fleet_protos.trial_types import is_void

METRIC_OF: Mapping[str, str] = {RATE: HIGHEST_RATE, CONCURRENCY: HIGHEST_CONCURRENCY}


@dataclass(frozen=True, slots=True)
class SloLimit:
    """The limit that one launch's search found. `met` is the highest load that met the SLO, or 0 if
    none did. `not_met` is the lowest load that did not meet it, or infinity if there is none.

    `ended` says why the search ended, as in `fleet_protos.trial_types.Searched`. It is empty while
    the search continues. `runs` counts the runs that are not void.
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
        """The upper bound of the limit. For whole requests in flight, this is one below the lowest
        load that did not meet the SLO.
        """
        return self.not_met - 1 if self.of == CONCURRENCY else self.not_met

    @property
    def is_closed(self) -> bool:
        """Whether both bounds of the limit are known."""
        return self.met > 0 and 0 < self.most < math.inf


def is_searched(stored: StoredRun) -> bool:
    """Return True if the run belongs to a search."""
    return stored.run.searched.load > 0


def all_limits(runs: Iterable[StoredRun]) -> list[SloLimit]:
    """Return one limit for each launch, attempt and search among the runs, in the order first seen.
    Attempts that do not count are included.
    """
    grouped: dict[tuple[str, int, str], list[StoredRun]] = defaultdict(list)
    for stored in runs:
        if is_searched(stored):
            grouped[stored.trial_id, stored.attempt, stored.run.workload].append(stored)
    return [_limit(members) for members in grouped.values()]


def finished_limits(runs: Iterable[StoredRun]) -> list[SloLimit]:
    """Return the limits of searches that ended, from attempts that count."""
    return [limit for limit in all_limits(counted_attempts(runs)) if limit.ended]


def _limit(members: Sequence[StoredRun]) -> SloLimit:
    last = max(members, key=lambda stored: stored.run.index)
    searched = last.run.searched
    return SloLimit(
        trial_id=last.trial_id,
        attempt=last.attempt,
        variant=last.variant,
        host=last.host,
        block=last.block,
        workload=last.run.workload,
        of=searched.of,
        met=searched.highest_met,
        not_met=searched.lowest_not_met or math.inf,
        ended=searched.ended,
        runs=sum(not is_void(stored.run) for stored in members),
    )


def open_notes(limits: Sequence[SloLimit]) -> list[str]:
    """Return one line for each way in which a variant's searches ended without settling the
    limit.
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
    "above": (
        "the SLO was met at the highest load of the search, {0}: the limit is at this load or "
        "above; raise `to`"
    ),
    "below": (
        "the SLO was not met at the lowest load of the search, {0}: the limit is below this load; "
        "lower `from`, or look at the runs at this load"
    ),
    "client_limited": (
        "the SLO was met at {0}, and the client could not send the next load: the limit is at this "
        "load or above; use load hosts"
    ),
    "unsettled": (
        "the search reached its maximum number of runs before its limit was certain: {0} meets the "
        "SLO for certain; runs of one load gave different results, so use longer runs"
    ),
}


def load_text(load: float, of: str) -> str:
    """Return the load as `12.3/s` or `12 at once`, or a dash if there is none."""
    if not 0 < load < math.inf:
        return "–"
    return f"{load:.0f} at once" if of == CONCURRENCY else f"{load:.4g}/s"


def mean_limit(
    limits: Sequence[SloLimit], confidence: float
) -> tuple[float | None, Interval | None]:
    """Return the mean of the highest load over launches, and its interval. The interval is that of
    the loads met, extended upwards by the average width of the brackets.
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


def limit_estimates(
    limits: Mapping[str, Sequence[SloLimit]], baseline: str
) -> tuple[dict[str, RatioEstimate], dict[str, OpenEnds]]:
    """Return the ratio of the highest loads for each variant that has one, and what the searches
    leave open of it. `limits` are those of all variants of a cell.

    Variants of which a limit is open, or the baseline's, are compared in pairs by the one bound
    that is known.
    """
    theirs = limits.get(baseline, ())
    others = {variant: own for variant, own in limits.items() if variant != baseline and own}
    closed = [variant for variant, own in others.items() if _all_closed((*own, *theirs))]
    in_model = {variant: limits[variant] for variant in (baseline, *closed) if variant in limits}
    launches = [
        LaunchValue(variant, limit.block, limit.met)
        for variant, own in in_model.items()
        for limit in own
    ]
    estimates = cell_estimates(launches, baseline) if closed else {}
    estimates = {variant: found.among(others) for variant, found in estimates.items()}
    ends = {
        variant: OpenEnds(_open_log_width(theirs), _open_log_width(others[variant]))
        for variant in estimates
    }
    for variant, own in others.items():
        if variant not in closed and (pair := _one_sided(own, theirs, len(others))):
            estimates[variant], ends[variant] = pair
    return estimates, ends


def _one_sided(
    ours: Sequence[SloLimit], theirs: Sequence[SloLimit], tests: int
) -> tuple[RatioEstimate, OpenEnds] | None:
    """Return the ratio from the one bound that is known of both sides."""
    if _all_met(ours) and _all_bounded(theirs):
        values, references = [limit.met for limit in ours], [limit.most for limit in theirs]
        ends = OpenEnds(above=math.inf)
    elif _all_bounded(ours) and _all_met(theirs):
        values, references = [limit.most for limit in ours], [limit.met for limit in theirs]
        ends = OpenEnds(below=math.inf)
    else:
        return None
    by_block = {
        limit.block: value for limit, value in zip(theirs, references, strict=True) if limit.block
    }
    pairs = [
        (value, by_block[limit.block])
        for limit, value in zip(ours, values, strict=True)
        if limit.block in by_block
    ]
    estimate = pair_estimate(pairs, tests) or welch_estimate(values, references, tests)
    return (estimate, ends) if estimate else None


def _all_closed(limits: Sequence[SloLimit]) -> bool:
    return all(limit.is_closed for limit in limits)


def _all_met(limits: Sequence[SloLimit]) -> bool:
    return all(limit.met > 0 for limit in limits)


def _all_bounded(limits: Sequence[SloLimit]) -> bool:
    return all(0 < limit.most < math.inf for limit in limits)


def _open_log_width(limits: Sequence[SloLimit]) -> float:
    """Return the mean width of the brackets on the log scale."""
    return mean([math.log(limit.most / limit.met) for limit in limits])
