"""Owns when a launch has come on, what of that is worth an event, and when it has stood still too
long. Knows no log, clock or process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_protos.events import ServerProgressed

FIRST_PHASE = "start"  # of a launch whose log says nothing yet
_TENTHS = 10


@dataclass(frozen=True, slots=True)
class StallState:
    """Where a launch is, since when nothing has come on (seconds on the clock of `look`), and what
    was told of it last.
    """

    phase: str
    done: int
    total: int
    advanced_at_s: float
    reported: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class LogSample:
    """What one look at the log showed; `grew`: there was a line that says something new."""

    phase: str = ""
    done: int = 0
    total: int = 0
    has_news: bool = False


def start_tracking(at_s: float) -> StallState:
    """A launch whose process has just come to be."""
    return StallState(FIRST_PHASE, 0, 0, at_s)


def advance_stall_state(
    state: StallState, sample: LogSample, at_s: float
) -> tuple[StallState, ServerProgressed | None]:
    """The course after a look, and the event to tell: at each new phase, and at each tenth of one
    that is counted.
    """
    phase = sample.phase or FIRST_PHASE
    moved = sample.has_news or (phase, sample.done, sample.total) != (
        state.phase,
        state.done,
        state.total,
    )
    after = StallState(
        phase, sample.done, sample.total, at_s if moved else state.advanced_at_s, state.reported
    )
    now = (phase, _tenth(sample.done, sample.total))
    if now == state.reported:
        return after, None
    return replace(after, reported=now), ServerProgressed(phase, sample.done, sample.total)


def is_stalled(state: StallState, limits_s: Mapping[str, float], at_s: float) -> bool:
    """Nothing has come on for longer than its phase may stand still; a limit of 0, or none, is no
    limit.
    """
    limit_s = limits_s.get(state.phase, 0.0)
    return limit_s > 0 and at_s - state.advanced_at_s > limit_s


def stall_message(state: StallState, at_s: float, last_line: str) -> str:
    """Phase, count, how long, and the last line of the log."""
    count = f" at {state.done}/{state.total}" if state.total else ""
    last_line_note = f"the last line of its log: {last_line}" if last_line else "its log is empty"
    return f"the launch has stood still in {state.phase}{count} for {at_s - state.advanced_at_s:.0f} s; {last_line_note}"


def _tenth(done: int, total: int) -> int:
    return done * _TENTHS // total if total else 0
