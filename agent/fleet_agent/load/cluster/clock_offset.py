"""Owns how times of one host's clock become those of another's, and how sure that is; pure.

Hosts share no clock: a wall clock may be wrong by anything, so it is never used. An offset is that
of the two monotonic clocks, seen by asking for the other's time and halving the way there and back
(Cristian's algorithm); its error is at most half of the quickest way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet_agent.load.results.request_columns import Columns


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One question for the other clock's time: ours when it was asked and when the answer came,
    theirs in the answer. Nanoseconds.
    """

    asked_ns: int
    theirs_ns: int
    answered_ns: int

    @property
    def took_ns(self) -> int:
        """The way there and back."""
        return self.answered_ns - self.asked_ns


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Their clock minus ours, true to within `uncertainty_ns`."""

    offset_ns: int = 0
    uncertainty_ns: int = 0

    def theirs(self, ours_ns: int) -> int:
        """That moment on their clock."""
        return ours_ns + self.offset_ns

    def ours(self, theirs_ns: int) -> int:
        """That moment on our clock; 0, which means never, stays 0."""
        return theirs_ns - self.offset_ns if theirs_ns else 0


def estimate_offset(samples: Iterable[ClockSample]) -> ClockOffset:
    """The offset by the quickest of the looks. Raises ValueError for none."""
    best = min(samples, key=lambda look: look.took_ns, default=None)
    if best is None:
        raise ValueError("no look at the other clock")
    return ClockOffset(
        best.theirs_ns - (best.asked_ns + best.answered_ns) // 2, (best.took_ns + 1) // 2
    )


def to_our_clock(columns: Columns, offset: ClockOffset) -> Columns:
    """The requests with all their times moved; what lies between two of them, such as their
    latencies, stays as it was measured.
    """
    return columns.shifted(-offset.offset_ns) if offset.offset_ns else columns


def spread_ns(starts: Iterable[tuple[int, ClockOffset]]) -> int:
    """How far apart two of the shards may have begun at most, each start by its own clock, with
    what the clocks leave open.
    """
    known = [(offset.ours(at_ns), offset.uncertainty_ns) for at_ns, offset in starts]
    if len(known) < 2:
        return 0
    earliest = sorted(range(len(known)), key=lambda shard: known[shard][0] - known[shard][1])[:2]
    return max(
        known[later][0] + known[later][1] - (known[first][0] - known[first][1])
        for later in range(len(known))
        for first in earliest
        if first != later
    )
