"""Indexes the attempts in a journal: all active attempts and the latest finished attempts."""

from __future__ import annotations

from collections.abc import Iterable

AttemptKey = tuple[str, int]  # trial id and attempt


class AttemptIndex:
    """Holds the attempts of one journal: all active attempts, and the last `finished_kept` finished
    attempts.
    """

    def __init__(self, finished: Iterable[AttemptKey], finished_kept: int) -> None:
        self._finished_kept = finished_kept
        self._active: dict[AttemptKey, int] = {}  # attempt → sequence number of its first event
        self._finished: dict[AttemptKey, None] = dict.fromkeys(finished)
        self._newest: dict[str, int] = {}  # trial id → its highest attempt
        for trial_id, attempt in self._finished:
            self._newest[trial_id] = max(attempt, self._newest.get(trial_id, 0))

    @property
    def finished(self) -> tuple[AttemptKey, ...]:
        """The finished attempts that are still known, oldest first."""
        return tuple(self._finished)

    def knows(self, trial_id: str, attempt: int) -> bool:
        """Return whether the attempt was accepted. Older finished attempts are not known."""
        return (trial_id, attempt) in self._active or (trial_id, attempt) in self._finished

    def newest_attempt(self, trial_id: str) -> int:
        """Return the number of the trial's newest accepted attempt. Return 0 if none is known."""
        return self._newest.get(trial_id, 0)

    def first_active_sequence(self, default: int) -> int:
        """Return the lowest sequence number of the events of active attempts. Return `default` if
        no attempt is active.
        """
        return min(self._active.values(), default=default)

    def begin(self, trial_id: str, attempt: int, sequence: int) -> None:
        """Add an active attempt. `sequence` is the sequence number of its first event."""
        self._active[trial_id, attempt] = sequence
        self._newest[trial_id] = max(attempt, self._newest.get(trial_id, 0))

    def end(self, trial_id: str, attempt: int) -> None:
        """Mark an attempt as finished. Forget the oldest finished attempt if there are too many."""
        self._active.pop((trial_id, attempt), None)
        self._finished[trial_id, attempt] = None
        if len(self._finished) > self._finished_kept:
            self._forget(*next(iter(self._finished)))

    def clear_active(self) -> None:
        """Forget the active attempts. Call this before the journal is read again."""
        self._active.clear()

    def _forget(self, trial_id: str, attempt: int) -> None:
        del self._finished[trial_id, attempt]
        if self._newest.get(trial_id) == attempt:
            del self._newest[trial_id]
