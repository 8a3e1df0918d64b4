"""Formats why a server failed: the log line that shows the cause, its rank, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet_controller.core.controller_api import TrialStatus
from fleet_knowledge.failure_classes import FAILURES
from fleet_protos.events import Event, ServerFailed
from fleet_protos.trial_types import Outcome

_CLASSES_SHOWN = 8


def first_of_each_class(trials: Iterable[TrialStatus]) -> tuple[TrialStatus, ...]:
    """Return the first failed trial of each failure class, at most eight."""
    first: dict[str, TrialStatus] = {}
    for trial in trials:
        if trial.outcome is Outcome.FAILED and trial.attempt and trial.failure_class:
            first.setdefault(trial.failure_class, trial)
    return tuple(first.values())[:_CLASSES_SHOWN]


def cause_lines(events: Sequence[Event]) -> list[str]:
    """Return `cause (TP1): …`, `hint: …` and `avoid: …` of the last server failure in `events`.

    A line is left out when its text is unknown.
    """
    failed = next(
        (event.body for event in reversed(events) if isinstance(event.body, ServerFailed)), None
    )
    if failed is None:
        return []
    known = FAILURES.get(failed.failure_class)
    rank = f" ({failed.rank})" if failed.rank else ""
    found = {
        f"cause{rank}": failed.cause_line,
        "hint": failed.hint or (known.hint if known else ""),
        "avoid": known.avoid if known else "",
    }
    return [f"{name}: {text}" for name, text in found.items() if text]
