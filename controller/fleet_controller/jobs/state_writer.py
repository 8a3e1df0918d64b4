"""Changes the controller's state in a fixed order: first the store, then the index, then the
metrics.
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
from fleet_controller.jobs.indexed_job import NOT_READY, IndexedJob
from fleet_controller.jobs.job_index import JobIndex
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_protos.errors import StoreLost, StoreUnusable
from fleet_protos.events import Event, ServerProgressed
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import Artifact, TrialSpec

T = TypeVar("T")

_MESSAGE_CHARACTERS = 200  # of what an external server lacks


class StateWriter:
    """Writes store, job index and metrics of a running controller. Nothing else writes them.
    Changes are made in the order of the calls.
    """

    def __init__(self, store: Store, series: RunSeries) -> None:
        self.job_index = JobIndex()
        self.series = series
        self.hosts_series = HostSeries(series.registry)
        # ended attempts of nodes, until they were counted for or against their hosts
        self.ended_attempts: deque[tuple[str, Attempt]] = deque()
        self.store_error = ""  # why the last write to the store failed; empty if it succeeded
        self.store_lost = asyncio.Event()  # from here on `check_store` raises StoreLost
        self.store = store  # used on its own thread only: see `run_in_store`
        # A single thread, so writes never interleave.
        self._store_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    async def load(self) -> None:
        """Read the jobs that are not over into the index, and all jobs into the metrics."""
        for row in await self.run_in_store(self.store.jobs):
            trials = await self.run_in_store(partial(self.store.trial_outlines, row.job_id))
            for trial in fold_gangs(trials):
                if trial.newest is not None:
                    self._update_series(trial.spec.trial_id, trial.newest)
            if not IndexedJob(row, trials).is_over:
                self.job_index.add(
                    row, await self.run_in_store(partial(self.store.trials, row.job_id))
                )
                for trial in self.job_index.jobs[row.job_id].active.values():
                    self.series.expect_runs(trial.spec, trial.spec.host)

    async def add_job(self, row: JobRow, specs: list[TrialSpec], request_key: str = "") -> str:
        """Store a submitted job and return its id. If a job was stored with this `request_key`
        before, return that job's id instead.
        """
        job_id = await self.run_in_store(partial(self.store.add_job, row, specs, request_key))
        if job_id == row.job_id:
            self.job_index.add(row, [Trial(spec) for spec in specs])
        return job_id

    async def job_of_request(self, request_key: str) -> str:
        """Return the id of the job that was stored with this request key, or an empty text."""
        return (
            await self.run_in_store(partial(self.store.job_of_request, request_key))
            if request_key
            else ""
        )

    async def cancel_job(self, job_id: str) -> list[Trial]:
        """Cancel a job and return its active trials."""
        await self.run_in_store(partial(self.store.cancel_job, job_id))
        return self.job_index.cancel(job_id)

    async def host_records(self) -> list[HostRecord]:
        """Return the stored record of each host: whether it is drained or quarantined, and its
        failures.
        """
        return await self.run_in_store(self.store.host_records)

    async def save_host(self, record: HostRecord) -> None:
        """Store the record of one host."""
        await self.run_in_store(partial(self.store.save_host, record))

    async def find_job(self, start: str) -> JobRow:
        """Return the job with the id `start`, or the only job with an id that begins with `start`.
        Raises NotFound if there is no such job. Raises ConfigError if there are several.
        """
        return await self.run_in_store(partial(self.store.find_job, start))

    async def save_attempt(self, trial_id: str, attempt: Attempt) -> None:
        """Store an attempt that the controller ends."""
        await self.begin_attempts([trial_id], attempt)

    async def begin_attempts(
        self, trial_ids: Sequence[str], attempt: Attempt, placed: Sequence[TrialSpec] = ()
    ) -> None:
        """Store this attempt for all of these nodes, or for none if the store fails. `placed` holds
        the specs of nodes to which a host was assigned.
        """
        await self.run_in_store(partial(self.store.save_attempt, trial_ids, attempt, placed))
        self.store_error = ""
        self.job_index.assign_hosts(placed)
        for trial_id in trial_ids:
            self._apply_attempt(trial_id, attempt)

    async def record_event(
        self, agent_id: str, host: str, event: Event, clock: HostClock = NO_SKEW
    ) -> Trial | None:
        """Store an event of an agent. Return the trial after the event, or None if the event
        changes nothing.

        `clock` compares the clock of the agent's host with the controller's clock.
        """
        clock = replace(clock, now_unix_ns=time.time_ns())
        attempt = await self.run_in_store(
            partial(self.store.record_event, agent_id, host, event, clock)
        )
        self.store_error = ""
        return (
            None
            if attempt is None
            else self._apply_attempt(event.trial_id, attempt, progress_text(event))
        )

    async def last_sequence(self, agent_id: str) -> int:
        """Return the number of the last stored event of this agent."""
        return await self.run_in_store(partial(self.store.last_sequence, agent_id))

    async def missing_artifacts(self, agent_id: str) -> list[Artifact]:
        """Return the files that the agent reported and that were not fetched yet."""
        return await self.run_in_store(partial(self.store.missing_artifacts, agent_id))

    async def mark_artifact_fetched(self, name: str) -> None:
        """Record that the complete file was fetched."""
        await self.run_in_store(partial(self.store.mark_artifact_fetched, name))

    async def run_in_store(self, work: Callable[[], T]) -> T:
        """Run a piece of store work on the store's own thread, in the order of the calls."""
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._store_thread, work)
        except StoreUnusable as error:
            self.store_error = error.message
            raise
        except StoreLost as error:
            self.store_error = error.message
            self.store_lost.set()
            raise
        return done

    async def check_store(self) -> None:
        """Raise StoreLost if the store is no longer the one that was opened. Raise StoreUnusable if
        the store cannot be used now.
        """
        await self.run_in_store(self.store.check)

    def close(self) -> None:
        """Stop the store's thread."""
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


def progress_text(event: Event) -> str:
    """Return `load_weight 61/163` for a ServerProgressed event, or what an external server lacks to
    be ready. Return an empty text for another event.
    """
    if not isinstance(event.body, ServerProgressed):
        return ""
    if event.body.message:
        return f"{NOT_READY}{event.body.message[:_MESSAGE_CHARACTERS]}"
    return (
        f"{event.body.phase} {event.body.done}/{event.body.total}"
        if event.body.total
        else event.body.phase
    )
