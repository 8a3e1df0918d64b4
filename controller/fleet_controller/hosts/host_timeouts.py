"""Owns how long hosts may be away before what waits for them, or for a cancel, is closed; the core says what that is. Reaches no host."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from fleet_controller.core.give_up import (
    CANCELLED_AFTER_S,
    GIVE_UP_AFTER_S,
    UNPLACED,
    GivenUp,
    cancelled,
    given_up,
)
from fleet_controller.core.trial_state import Trial
from fleet_controller.hosts.host_connection import HostLine
from fleet_controller.jobs.job_index import JobOnBoard
from fleet_controller.jobs.state_writer import Desk

log = logging.getLogger(__name__)


class Patience:
    """One controller's, from its start on: what was away before counts from then."""

    def __init__(self, desk: Desk, lines: Callable[[], Sequence[HostLine]], give_up_after_s: float = GIVE_UP_AFTER_S) -> None:
        self._desk = desk
        self._lines = lines
        self._limit_s = give_up_after_s
        self._since_s = time.monotonic()
        self._told: set[str] = set()

    async def end(self) -> None:
        """Close what is waited for no longer. Raises Conflict when the store cannot take it."""
        for job in list(self._desk.board.open_jobs):
            for end in list(self._ends(job)):
                await self._desk.save(end.trial_id, end.attempt)
                if end.attempt.message not in self._told:
                    self._told.add(end.attempt.message)
                    log.warning("%s: %s", end.trial_id, end.attempt.message)
        self._told.clear()

    def _ends(self, job: JobOnBoard) -> Iterator[GivenUp]:
        away_s = self._away_s(job)
        limit_s, end = self._limit_s, given_up
        if job.row.cancelled:
            limit_s, end = min(limit_s, CANCELLED_AFTER_S), cancelled
        if any(seconds > limit_s for seconds in away_s.values()):
            yield from end(_open(job), away_s, limit_s, time.time_ns())

    def _away_s(self, job: JobOnBoard) -> dict[str, float]:
        """Of the hosts that the job names, also of those that this controller does not know."""
        now_s = time.monotonic()
        lines = {line.host: line for line in self._lines() if line.host}
        away_s = {host: now_s - self._since_s for host in job.been if host not in lines}
        away_s |= {host: line.away_s(now_s) for host, line in lines.items()}
        matching = [away_s[host] for host, line in lines.items() if job.choice.takes(host, line.labels)]
        return {**away_s, UNPLACED: min(matching, default=now_s - self._since_s)}


def _open(job: JobOnBoard) -> list[Trial]:
    """The trials of a job that are active, and those that may begin unless it was cancelled."""
    waiting = job.waiting
    pinned = [trial for trials in waiting.pinned.values() for trial in trials]
    return [*job.active.values(), *pinned, *(trial for block in waiting.blocks for trial in block)]
