"""What `fleetctl` and the gRPC service ask of a controller, and the values that it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet_protos.events import Event
from fleet_protos.trial_types import ErrorKind, Outcome, Phase, RunResult


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run and the attempt that it belongs to. Its fields are those of the proto message of this
    name.
    """

    trial_id: str = ""
    attempt: int = 1
    variant: str = ""
    host: str = ""
    block: int = 0  # 0: belongs to no block, so it is never paired
    trial_outcome: Outcome = Outcome.UNSPECIFIED
    run: RunResult = field(default_factory=RunResult)


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job as listed. `state`: queued, running, done, failed or cancelled."""

    job_id: str = ""
    name: str = ""
    state: str = ""
    submitted_unix_ns: int = 0
    trials: int = 0
    trials_over: int = 0
    engine: str = ""
    time_scale: float = 1.0
    priority: int = 0
    # why the job makes no progress now, such as a drained host; empty if nothing is known
    trouble: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """A trial in its newest attempt. `runs`: how many runs the attempt has finished; `progress`:
    how far its launch has come.
    """

    trial_id: str = ""
    variant: str = ""
    host: str = ""
    block: int = 0
    attempt: int = 0
    phase: Phase = Phase.UNSPECIFIED
    outcome: Outcome = Outcome.UNSPECIFIED
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""
    runs: int = 0
    progress: str = ""
    nodes: tuple[str, ...] = ()  # hosts of a server over several hosts, the lead first


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host as the controller sees it. `state`: connected, unreachable or incompatible."""

    host: str = ""
    address: str = ""
    state: str = ""
    gpus: int = 0
    simulated_gpus: int = 0
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    drained: bool = False
    drain_reason: str = ""
    aside: str = ""
    aside_since_unix_ns: int = 0
    clock_ahead_s: float = 0.0
    certificate_expires_unix_s: int = 0
    active_trial: str = ""
    load_only: bool = False
    cost_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One result of a host check. `severity`: error (no trial can run on the host), warning or
    info.
    """

    code: str = ""
    severity: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The findings of one host; `reached` is False if it did not answer."""

    host: str = ""
    reached: bool = False
    findings: tuple[HostFinding, ...] = ()
    took_s: float = 0.0

    @property
    def errors(self) -> str:
        """The messages of all findings of severity error; empty if there is none."""
        return "; ".join(
            finding.message for finding in self.findings if finding.severity == "error"
        )


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with all its trials and the submitted text."""

    job: JobSummary = field(default_factory=JobSummary)
    trials: tuple[TrialStatus, ...] = ()
    yaml: str = ""


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job at one moment: first with all trials, later with those that changed. `left_s`: expected
    wall seconds to its end, 0 if unknown.
    """

    job: JobSummary = field(default_factory=JobSummary)
    trials: tuple[TrialStatus, ...] = ()
    left_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobResults:
    """All stored runs of a job."""

    job: JobSummary = field(default_factory=JobSummary)
    yaml: str = ""
    runs: tuple[StoredRun, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialDetail:
    """One attempt of a trial: its events and, if requested, the end of its server's log."""

    status: TrialStatus = field(default_factory=TrialStatus)
    events: tuple[Event, ...] = ()
    server_log: str = ""


class Controller(Protocol):
    """A controller in this process or behind a socket. All calls raise only kinds of FleetError."""

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = ""
    ) -> str:
        """Submit a job and return its id. `only_connected`: plan no trial on a host that does not
        answer. Raises ConfigError.

        `request_key`: a repeated key returns the same job, so a submit whose response was lost can
        be repeated. An empty key always makes a new job.
        """
        ...

    async def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, the newest first."""
        ...

    async def job(self, job_id: str) -> JobDetail:
        """Return one job by its id or a unique prefix of it. Raises ConfigError if
        there is none.
        """
        ...

    def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """Yield the changes of a job until it is over."""
        ...

    async def cancel(self, job_id: str) -> int:
        """Cancel a job; return how many trials it ended or prevented."""
        ...

    async def hosts(self) -> tuple[HostStatus, ...]:
        """Return all hosts of the controller."""
        ...

    async def drain(self, host: str, reason: str) -> None:
        """Start no new trials on a host; running ones are measured to their end. Raises
        NotFound.
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
        """Return every stored run of a job."""
        ...

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """Return one attempt of a trial; 0 means the newest. Raises ConfigError if
        there is none.
        """
        ...
