"""Converts times of one host's clock to the clock of another host, and estimates the error.

Only monotonic clocks are used, because a wall clock may be wrong by any amount. One host asks
another for its time and assumes that the answer was read halfway through the round trip (Cristian's
algorithm). The error is at most half of the quickest round trip.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet_agent.load.results.request_columns import Columns


@dataclass(frozen=True, slots=True)
class ClockSample:
    """Holds one request for the time of the other host's clock, in nanoseconds.

    `asked_ns`: our time when the request was sent.
    `theirs_ns`: the other host's time in the answer.
    `answered_ns`: our time when the answer arrived.
    """

    asked_ns: int
    theirs_ns: int
    answered_ns: int

    @property
    def took_ns(self) -> int:
        """Return the round-trip time of the request."""
        return self.answered_ns - self.asked_ns


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Holds the other host's clock minus our clock, accurate to within `uncertainty_ns`."""

    offset_ns: int = 0
    uncertainty_ns: int = 0

    def theirs(self, ours_ns: int) -> int:
        """Convert a time of our clock to the other host's clock."""
        return ours_ns + self.offset_ns

    def ours(self, theirs_ns: int) -> int:
        """Convert a time of the other host's clock to our clock. The time 0, which means "never",
        stays 0.
        """
        return theirs_ns - self.offset_ns if theirs_ns else 0


def estimate_offset(samples: Iterable[ClockSample]) -> ClockOffset:
    """Return the clock offset from the sample with the quickest round trip. Raises ValueError
    without samples.
    """
    best = min(samples, key=lambda sample: sample.took_ns, default=None)
    if best is None:
        raise ValueError("the other host's clock was never sampled")
    return ClockOffset(
        best.theirs_ns - (best.asked_ns + best.answered_ns) // 2, (best.took_ns + 1) // 2
    )


def to_our_clock(columns: Columns, offset: ClockOffset) -> Columns:
    """Return the requests with all times converted to our clock. Differences between times, such as
    latencies, do not change.
    """
    return columns.shifted(-offset.offset_ns) if offset.offset_ns else columns


def spread_ns(starts: Iterable[tuple[int, ClockOffset]]) -> int:
    """Return the longest possible time between the starts of two shards.

    Each start is given on its shard's own clock. The result includes the uncertainty of the clocks.
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
