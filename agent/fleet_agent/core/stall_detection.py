"""Owns when a launch has come on, what of that is worth an event, and when it has stood still too long. Knows no log, clock or process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_protos.events import ServerProgressed

FIRST = "start"  # of a launch whose log says nothing yet
_TENTHS = 10


@dataclass(frozen=True, slots=True)
class Course:
    """Where a launch is, since when nothing has come on (seconds on the clock of `look`), and what was told of it last."""

    phase: str
    done: int
    total: int
    moved_at_s: float
    told: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the log showed; `grew`: there was a line that says something new."""

    phase: str = ""
    done: int = 0
    total: int = 0
    grew: bool = False


def begin(at_s: float) -> Course:
    """A launch whose process has just come to be."""
    return Course(FIRST, 0, 0, at_s)


def advance(course: Course, seen: Look, at_s: float) -> tuple[Course, ServerProgressed | None]:
    """The course after a look, and the event to tell: at each new phase, and at each tenth of one that is counted."""
    phase = seen.phase or FIRST
    moved = seen.grew or (phase, seen.done, seen.total) != (course.phase, course.done, course.total)
    after = Course(phase, seen.done, seen.total, at_s if moved else course.moved_at_s, course.told)
    now = (phase, _tenth(seen.done, seen.total))
    if now == course.told:
        return after, None
    return replace(after, told=now), ServerProgressed(phase, seen.done, seen.total)


def stands_still(course: Course, limits_s: Mapping[str, float], at_s: float) -> bool:
    """Nothing has come on for longer than its phase may stand still; a limit of 0, or none, is no limit."""
    limit_s = limits_s.get(course.phase, 0.0)
    return limit_s > 0 and at_s - course.moved_at_s > limit_s


def stall_message(course: Course, at_s: float, last_line: str) -> str:
    """Phase, count, how long, and the last line of the log."""
    count = f" at {course.done}/{course.total}" if course.total else ""
    told = f"the last line of its log: {last_line}" if last_line else "its log is empty"
    return f"the launch has stood still in {course.phase}{count} for {at_s - course.moved_at_s:.0f} s; {told}"


def _tenth(done: int, total: int) -> int:
    return done * _TENTHS // total if total else 0
