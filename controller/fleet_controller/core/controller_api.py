"""Defines the calls that `fleetctl` and the gRPC service make to a controller. The values that
these calls return are generated from `v1/controller.proto`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Protocol

from fleet_protos.v1.agent_values import HostFinding
from fleet_protos.v1.controller_values import (
    HostCheck,
    HostStatus,
    JobChange,
    JobDetail,
    JobResults,
    JobSummary,
    StoredRun,
    TrialDetail,
    TrialStatus,
)

__all__ = [
    "Controller", "HostCheck", "HostFinding", "HostStatus", "JobChange", "JobDetail", "JobResults",
    "JobSummary", "StoredRun", "TrialDetail", "TrialStatus", "error_messages", "is_job_over",
    "join_results",
]  # fmt: skip


def is_job_over(job: JobSummary) -> bool:
    """Return whether the job has ended."""
    return job.state in ("done", "failed", "cancelled")


async def join_results(parts: AsyncIterator[JobResults]) -> JobResults:
    """Return the results of a job from its parts. Only the first holds more than runs."""
    whole = JobResults()
    runs: list[StoredRun] = []
    async for part in parts:
        whole = whole if runs else part
        runs += part.runs
    return replace(whole, runs=tuple(runs))


def error_messages(check: HostCheck) -> str:
    """Return the messages of all findings of severity error, or an empty text."""
    return "; ".join(finding.message for finding in check.findings if finding.severity == "error")


class Controller(Protocol):
    """The calls of a controller in this process or behind a socket. All calls raise only kinds of
    FleetError.
    """

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = ""
    ) -> str:
        """Submit a job and return its id. With `only_connected`, no trial is planned on a host that
        does not answer. Raises ConfigError.

        If a job was stored with this `request_key` before, its id is returned. So a submit can be
        repeated if its response was lost. An empty key always makes a new job.
        """
        ...

    async def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, the newest first."""
        ...

    async def job(self, job_id: str) -> JobDetail:
        """Return one job by its id or a unique prefix of it. Raises ConfigError if there is no such
        job.
        """
        ...

    def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """Yield the changes of a job until it is over."""
        ...

    async def cancel(self, job_id: str) -> int:
        """Cancel a job. Return how many trials were ended or will never start."""
        ...

    async def hosts(self) -> tuple[HostStatus, ...]:
        """Return all hosts of the controller."""
        ...

    async def drain(self, host: str, reason: str) -> None:
        """Start no new trials on a host, and measure the running trials to their end. Raises
        NotFound if no host has this name.
        """
        ...

    async def undrain(self, host: str) -> None:
        """Allow trials on a host again, even if it is quarantined. Raises NotFound."""
        ...

    def check_hosts(self, hosts: Sequence[str]) -> AsyncIterator[HostCheck]:
        """Check the named hosts, or all if none is named, and yield each result when it is ready.
        Raises NotFound.
        """
        ...

    async def results(self, job_id: str) -> JobResults:
        """Return every stored run of a job. Raises ConfigError if there are too many."""
        ...

    def result_parts(self, job_id: str) -> AsyncIterator[JobResults]:
        """Yield the results of a job in parts of bounded size. Only the first holds more than runs.
        Raises ConfigError if there are too many runs.
        """
        ...

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """Return one attempt of a trial. Attempt 0 means the newest. Raises ConfigError if there is
        no such attempt.
        """
        ...
