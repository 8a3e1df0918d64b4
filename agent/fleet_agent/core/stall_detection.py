"""Decides when a launch has progressed, when that is worth an event, and when it has stalled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_protos.events import ServerProgressed

FIRST_PHASE = "start"  # of a launch whose log names no phase yet
_TENTHS = 10


@dataclass(frozen=True, slots=True)
class StallState:
    """Where a launch is.

    `advanced_at_s` is when it last progressed, in seconds on the clock of the caller. `reported` is
    the phase and the tenth of it that the last event reported.
    """

    phase: str
    done: int
    total: int
    advanced_at_s: float
    reported: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class LogSample:
    """What one reading of the log showed; `has_news` if a line was of a kind not seen before."""

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
    """Return the state after a reading of the log, and the event to report or None.

    There is an event at each new phase, and at each tenth of a phase that has a count.
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
    """Whether the launch has made no progress for longer than the limit of its phase.

    `limits_s` maps phases to seconds; 0 or a missing entry means no limit.
    """
    limit_s = limits_s.get(state.phase, 0.0)
    return limit_s > 0 and at_s - state.advanced_at_s > limit_s


def stall_message(state: StallState, at_s: float, last_line: str) -> str:
    """Describe a stall: phase, count, duration and the last line of the log."""
    count = f" at {state.done}/{state.total}" if state.total else ""
    last_line_note = f"the last line of its log: {last_line}" if last_line else "its log is empty"
    stalled_s = at_s - state.advanced_at_s
    return (
        f"the launch made no progress in {state.phase}{count} for {stalled_s:.0f} s; "
        f"{last_line_note}"
    )


def _tenth(done: int, total: int) -> int:
    return done * _TENTHS // total if total else 0
