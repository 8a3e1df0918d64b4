"""Owns the one place where the controller's state changes: store first, then board, then metrics,
in the order of the calls.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fleet_controller.core.gang import fold_gangs, lead_and_rank
from fleet_controller.core.quarantine import HostRecord
from fleet_controller.core.trial_state import NO_SKEW, Attempt, HostClock, Trial
from fleet_controller.jobs.host_metrics import HostSeries
from fleet_controller.jobs.indexed_job import IndexedJob
from fleet_controller.jobs.job_index import JobIndex
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_protos.errors import StoreUnusable
from fleet_protos.events import Event, ServerProgressed
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import Artifact, TrialSpec

T = TypeVar("T")


class StateWriter:
    """Store, board and metrics of a working controller."""

    def __init__(self, store: Store, series: RunSeries) -> None:
        self.job_index = JobIndex()
        self.series = series
        self.hosts_series = HostSeries(series.registry)
        self.ended_attempts: deque[tuple[str, Attempt]] = (
            deque()
        )  # nodes whose attempts ended, until somebody has weighed them
        self.store_error = ""  # why the store took nothing when it was last written to
        self.store = store  # asked on its own thread alone: see `ask`
        self._store_thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="store"
        )  # one owner: writes never interleave

    async def load(self) -> None:
        """Put the jobs that are not over back on the board; show all in the metrics."""
        for row in await self.run_in_store(self.store.jobs):
            trials = await self.run_in_store(partial(self.store.trial_outlines, row.job_id))
            for trial in fold_gangs(trials):
                if trial.newest is not None:
                    self._update_series(trial.spec.trial_id, trial.newest)
            if not IndexedJob(row, trials).is_over:
                self.job_index.add(
                    row, await self.run_in_store(partial(self.store.trials, row.job_id))
                )

    async def add_job(self, row: JobRow, trials: list[Trial], request_key: str = "") -> str:
        """A job that was submitted; its id, or that of the one which this request made before."""
        job_id = await self.run_in_store(
            partial(self.store.add_job, row, [trial.spec for trial in trials], request_key)
        )
        if job_id == row.job_id:
            self.job_index.add(row, trials)
        return job_id

    async def job_of_request(self, request_key: str) -> str:
        """The job that a submit with this key made; empty when there is none."""
        return (
            await self.run_in_store(partial(self.store.job_of_request, request_key))
            if request_key
            else ""
        )

    async def cancel_job(self, job_id: str) -> list[Trial]:
        """Nothing of it starts any more; the trials that are active now."""
        await self.run_in_store(partial(self.store.cancel_job, job_id))
        return self.job_index.cancel(job_id)

    async def host_records(self) -> list[HostRecord]:
        """What was decided about hosts."""
        return await self.run_in_store(self.store.host_records)

    async def save_host(self, record: HostRecord) -> None:
        """What is decided about a host now."""
        await self.run_in_store(partial(self.store.save_host, record))

    async def find_job(self, start: str) -> JobRow:
        """The job with this id or the only one whose id begins so. Raises ConfigError."""
        return await self.run_in_store(partial(self.store.find_job, start))

    async def save_attempt(self, trial_id: str, attempt: Attempt) -> None:
        """An attempt that the controller itself closes."""
        await self.begin_attempts([trial_id], attempt)

    async def begin_attempts(
        self, trial_ids: Sequence[str], attempt: Attempt, placed: Sequence[TrialSpec] = ()
    ) -> None:
        """One attempt of each of these nodes: of all of them or of none. `placed`: nodes that have
        a host from here on.
        """
        await self.run_in_store(partial(self.store.save_attempt, trial_ids, attempt, placed))
        self.store_error = ""
        self.job_index.assign_hosts(placed)
        for trial_id in trial_ids:
            self._apply_attempt(trial_id, attempt)

    async def record_event(
        self, agent_id: str, host: str, event: Event, clock: HostClock = NO_SKEW
    ) -> Trial | None:
        """An event that an agent told; the trial after it, None when nothing new came of it.
        `clock`: of its host, before ours.
        """
        clock = replace(clock, now_unix_ns=time.time_ns())
        attempt = await self.run_in_store(
            partial(self.store.record_event, agent_id, host, event, clock)
        )
        self.store_error = ""
        return (
            None
            if attempt is None
            else self._apply_attempt(event.trial_id, attempt, _progress(event))
        )

    async def last_sequence(self, agent_id: str) -> int:
        """Up to here that agent's events are stored."""
        return await self.run_in_store(partial(self.store.last_sequence, agent_id))

    async def missing_artifacts(self, agent_id: str) -> list[Artifact]:
        """Files that the agent told of and that are not here yet."""
        return await self.run_in_store(partial(self.store.missing_artifacts, agent_id))

    async def mark_artifact_fetched(self, name: str) -> None:
        """The file is here, whole."""
        await self.run_in_store(partial(self.store.mark_artifact_fetched, name))

    async def run_in_store(self, work: Callable[[], T]) -> T:
        """Do a piece of store work on the store's own thread, in order."""
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._store_thread, work)
        except StoreUnusable as error:
            self.store_error = error.message
            raise
        return done

    def close(self) -> None:
        """Let the store's thread end."""
        self._store_thread.shutdown()

    def _apply_attempt(self, trial_id: str, attempt: Attempt, progress: str = "") -> Trial | None:
        if attempt.is_over and not self.job_index.is_known_over(trial_id, attempt.number):
            self.ended_attempts.append((trial_id, attempt))
        trial = self.job_index.update_attempt(trial_id, attempt, progress)
        if trial is not None and trial.newest is not None:
            self._update_series(trial.spec.trial_id, trial.newest)
        elif not lead_and_rank(trial_id)[1]:
            self._update_series(trial_id, attempt)
        return trial

    def _update_series(self, trial_id: str, attempt: Attempt) -> None:
        self.series.record_trial(
            f"{trial_id}/{attempt.number}", attempt.phase, attempt.outcome or None
        )


def _progress(event: Event) -> str:
    """`load_weight 61/163`, empty for any other event."""
    if not isinstance(event.body, ServerProgressed):
        return ""
    return (
        f"{event.body.phase} {event.body.done}/{event.body.total}"
        if event.body.total
        else event.body.phase
    )
