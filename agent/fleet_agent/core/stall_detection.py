"""Tracks the progress of a launch. Decides when to report progress, and when a
launch has stalled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_protos.events import ServerProgressed

FIRST_PHASE = "start"  # of a launch whose log names no phase yet
_TENTHS = 10


@dataclass(frozen=True, slots=True)
class StallState:
    """Describes how far a launch has got.

    `phase` is the phase of the launch, with `done` of `total` steps. `advanced_at_s` is the time of
    the last progress, in seconds on the clock of the caller. `reported` is the phase that the last
    event reported, and how many tenths of the phase were done.
    """

    phase: str
    done: int
    total: int
    advanced_at_s: float
    reported: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class LogSample:
    """Holds what one reading of the log showed. `has_news` means that a line of a new kind
    appeared.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    has_news: bool = False


def start_tracking(at_s: float) -> StallState:
    """Return the state of a launch whose process has just started."""
    return StallState(FIRST_PHASE, 0, 0, at_s)


def advance_stall_state(
    state: StallState, sample: LogSample, at_s: float
) -> tuple[StallState, ServerProgressed | None]:
    """Return the state after a reading of the log, and the event to report, if any.

    An event is reported at each new phase, and after each tenth of a phase that has a count.
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
    """Return whether the launch has made no progress for longer than the limit of its phase.

    `limits_s` maps phases to seconds. A phase without an entry, or with 0, has no limit.
    """
    limit_s = limits_s.get(state.phase, 0.0)
    return limit_s > 0 and at_s - state.advanced_at_s > limit_s


def stall_message(state: StallState, at_s: float, last_line: str) -> str:
    """Return a text about a stall: phase, count, duration and the last line of the log."""
    count = f" at {state.done}/{state.total}" if state.total else ""
    last_line_note = f"the last line of its log: {last_line}" if last_line else "its log is empty"
    stalled_s, place = at_s - state.advanced_at_s, f"{state.phase}{count}"
    return f"the launch made no progress in {place} for {stalled_s:.0f} s; {last_line_note}"


def _tenth(done: int, total: int) -> int:
    return done * _TENTHS // total if total else 0
