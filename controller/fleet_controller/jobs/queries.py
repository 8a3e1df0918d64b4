"""Answers queries from the store alone. A running controller uses this module, and so do commands
when no controller runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fleet_controller.core.controller_api import (
    HostCheck,
    HostStatus,
    JobChange,
    JobDetail,
    JobResults,
    JobSummary,
    TrialDetail,
    join_results,
)
from fleet_controller.jobs.job_views import job_detail, job_summary, trial_status
from fleet_controller.store.store import Store
from fleet_protos.errors import ConfigError, HostUnreachable, NotFound

_LOG_LIMIT_BYTES = 1 << 20
MOST_RUNS = 250_000  # of one job in an answer; `compare` needs about 5 KB of memory for each
_RUNS_PER_PART = 5_000  # a few MB, read in less than a second
_NO_CONTROLLER = "no controller is running"
_START_HINT = "start one with `fleetctl up`, or run a job with `fleetctl run FILE`"


class ReadOnlyController:
    """A `Controller` that answers queries and refuses orders. Commands use it when no controller
    runs.
    """

    def __init__(self, store: Store, artifacts: Path) -> None:
        self._store = store
        self._artifacts = artifacts

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = ""
    ) -> str:
        """Raise HostUnreachable, because only a running controller can do this."""
        raise HostUnreachable(_NO_CONTROLLER, _START_HINT)

    async def cancel(self, job_id: str) -> int:
        """Raise HostUnreachable, because only a running controller can do this."""
        raise HostUnreachable(_NO_CONTROLLER, _START_HINT)

    async def hosts(self) -> tuple[HostStatus, ...]:
        """Raise HostUnreachable, because only a running controller can do this."""
        raise HostUnreachable(_NO_CONTROLLER, _START_HINT)

    async def drain(self, host: str, reason: str) -> None:
        """Raise HostUnreachable, because only a running controller can do this."""
        raise HostUnreachable(_NO_CONTROLLER, _START_HINT)

    async def undrain(self, host: str) -> None:
        """Raise HostUnreachable, because only a running controller can do this."""
        raise HostUnreachable(_NO_CONTROLLER, _START_HINT)

    async def check_hosts(self, hosts: Sequence[str]) -> AsyncIterator[HostCheck]:
        """Raise HostUnreachable, because only a running controller can do this."""
        raise HostUnreachable(_NO_CONTROLLER, _START_HINT)
        yield HostCheck()

    async def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, the newest first."""
        return await asyncio.to_thread(self._jobs)

    async def job(self, job_id: str) -> JobDetail:
        """Return one job by its id or a unique prefix of it."""
        return await asyncio.to_thread(self._job, job_id)

    async def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """Yield the job once, because nothing changes without a controller."""
        found = await self.job(job_id)
        yield JobChange(found.job, found.trials)

    async def results(self, job_id: str) -> JobResults:
        """Return every stored run of a job."""
        return await join_results(self.result_parts(job_id))

    async def result_parts(self, job_id: str) -> AsyncIterator[JobResults]:
        """Yield the results of a job in parts of bounded size. Nothing more is read once the caller
        stops iterating. Raises ConfigError if the job has too many runs.
        """
        part, rest = await asyncio.to_thread(self._first_results, job_id)
        yield part
        for first, last in rest:
            runs = await asyncio.to_thread(self._store.runs, part.job.job_id, first, last)
            yield JobResults(part.job, runs=tuple(runs))

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """Return one attempt of a trial. Attempt 0 means the newest."""
        return await asyncio.to_thread(self._trial, trial_id, attempt, with_log)

    def _jobs(self) -> tuple[JobSummary, ...]:
        return tuple(
            job_summary(row, self._store.trial_outlines(row.job_id))
            for row in reversed(self._store.jobs())
        )

    def _job(self, start: str) -> JobDetail:
        row = self._store.find_job(start)
        return job_detail(row, self._store.trial_outlines(row.job_id))

    def _first_results(self, start: str) -> tuple[JobResults, list[tuple[int, int]]]:
        """Return the first part of the results, and the first and last trial of each other part."""
        row = self._store.find_job(start)
        counts = self._store.run_counts(row.job_id)
        if (total := sum(count for _, count in counts)) > MOST_RUNS:
            raise ConfigError(
                f"job {row.job_id} has {total:,} stored runs, more than the {MOST_RUNS:,} that can "
                "be read at once",
                "measure fewer launches, runs or workloads in one job, and compare the jobs; the "
                "runs stay in the store",
            )
        first, *rest = _parts(counts) or [(0, 0)]
        return (
            JobResults(
                job_summary(row, self._store.trial_outlines(row.job_id)),
                row.yaml,
                tuple(self._store.runs(row.job_id, *first)),
                row.resolved,
            ),
            rest,
        )

    def _trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        trial = self._store.find_trial(trial_id)
        if attempt and all(known.number != attempt for known in trial.attempts):
            attempts = len(trial.attempts)
            raise NotFound(
                f"trial {trial_id} has no attempt {attempt}", f"its newest attempt is {attempts}"
            )
        found = trial_status(trial, attempt)
        events = tuple(self._store.events(trial_id, found.attempt))
        log = self._read_log(trial_id, found.attempt) if with_log else ""
        return TrialDetail(found, events, log)

    def _read_log(self, trial_id: str, attempt: int) -> str:
        path = self._artifacts / trial_id / str(attempt) / "server-log.txt"
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_LIMIT_BYTES))
            return file.read().decode(errors="replace")


def _parts(counts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Divide the trials (position, runs) into parts; return the first and last position of each."""
    parts: list[tuple[int, int]] = []
    runs = _RUNS_PER_PART
    for position, count in counts:
        if runs + count > _RUNS_PER_PART:
            parts.append((position, position))
            runs = 0
        parts[-1] = (parts[-1][0], position)
        runs += count
    return parts
