"""Closes attempts and trials whose hosts have been away for too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from fleet_controller.core.give_up import (
    CANCELLED_AFTER_S,
    GIVE_UP_AFTER_S,
    UNPLACED,
    GivenUpAttempt,
    attempts_to_cancel,
    attempts_to_give_up,
)
from fleet_controller.core.trial_state import Trial
from fleet_controller.hosts.host_connection import HostConnection
from fleet_controller.jobs.indexed_job import IndexedJob
from fleet_controller.jobs.state_writer import StateWriter

log = logging.getLogger(__name__)


class HostTimeouts:
    """Closes the attempts and trials that wait for a host that has been away too long. Time before
    the start of the controller does not count.
    """

    def __init__(
        self,
        writer: StateWriter,
        connections: Callable[[], Sequence[HostConnection]],
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._limit_s = give_up_after_s
        self._started_at_s = time.monotonic()
        self._logged: set[str] = set()

    async def close_expired(self) -> None:
        """Close all attempts and trials that have waited too long for their hosts. Raises Conflict
        if the store cannot be written.
        """
        for job in list(self._writer.job_index.open_jobs):
            for end in list(self._expired(job)):
                await self._writer.save_attempt(end.trial_id, end.attempt)
                if end.attempt.message not in self._logged:
                    self._logged.add(end.attempt.message)
                    log.warning("%s: %s", end.trial_id, end.attempt.message)
        self._logged.clear()

    def _expired(self, job: IndexedJob) -> Iterator[GivenUpAttempt]:
        away_s = self._away_s(job)
        limit_s, end = self._limit_s, attempts_to_give_up
        if job.row.cancelled:
            limit_s, end = min(limit_s, CANCELLED_AFTER_S), attempts_to_cancel
        if any(seconds > limit_s for seconds in away_s.values()):
            yield from end(_unfinished_trials(job), away_s, limit_s, time.time_ns())

    def _away_s(self, job: IndexedJob) -> dict[str, float]:
        """Return for how many seconds each host that the job names has been away. Hosts that the
        controller does not know are included.
        """
        now_s = time.monotonic()
        connections = {
            connection.host: connection for connection in self._connections() if connection.host
        }
        away_s = {
            host: now_s - self._started_at_s for host in job.hosts_used if host not in connections
        }
        away_s |= {host: connection.away_s(now_s) for host, connection in connections.items()}
        matching = [
            away_s[host]
            for host, connection in connections.items()
            if job.choice.matches(host, connection.labels)
        ]
        return {**away_s, UNPLACED: min(matching, default=now_s - self._started_at_s)}


def _unfinished_trials(job: IndexedJob) -> list[Trial]:
    """Return the active trials of a job and the trials that may still begin. If the job is
    cancelled, only its active trials are returned.
    """
    waiting = job.waiting
    pinned = [trial for trials in waiting.pinned.values() for trial in trials]
    return [*job.active.values(), *pinned, *(trial for block in waiting.blocks for trial in block)]
