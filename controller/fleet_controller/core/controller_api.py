"""Owns what `fleetctl` shows of jobs, trials and hosts, as frozen values; field for field the
contract's messages. Fetches nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet_protos.events import Event
from fleet_protos.trial_types import ErrorKind, Outcome, Phase, RunResult


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run and the attempt that it belongs to; field for field the contract's message of the same
    name.
    """

    trial_id: str = ""
    attempt: int = 1
    variant: str = ""
    host: str = ""
    block: int = 0  # 0: not of a block, so never paired
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
    # what keeps it from coming on now, such as a host that is drained; empty = nothing known
    trouble: str = ""

    @property
    def is_over(self) -> bool:
        """True when nothing more will happen."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """One trial in its newest attempt; `runs` are those finished in it, `progress` is how far its
    launch has come.
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
    nodes: tuple[str, ...] = ()  # hosts of a server over several, the one that serves first


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host as the controller sees it. `state`: connected or unreachable."""

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
    """One thing that a look at a host tells. `severity`: error (it stands in the way of every
    trial), warning or info.
    """

    code: str = ""
    severity: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The answer of one host, or that it gave none."""

    host: str = ""
    reached: bool = False
    findings: tuple[HostFinding, ...] = ()
    took_s: float = 0.0

    @property
    def errors(self) -> str:
        """The messages of what stands in the way of every trial there; empty when nothing does."""
        return "; ".join(
            finding.message for finding in self.findings if finding.severity == "error"
        )


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with all its trials and the text it was submitted as."""

    job: JobSummary = field(default_factory=JobSummary)
    trials: tuple[TrialStatus, ...] = ()
    yaml: str = ""


@dataclass(frozen=True, slots=True)
class JobChange:
    """One look at a job: at first with all trials, then with those that changed. `left_s`: wall
    seconds, 0 = unknown.
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
    """One attempt of a trial: its events and, when asked for, the end of its server's log."""

    status: TrialStatus = field(default_factory=TrialStatus)
    events: tuple[Event, ...] = ()
    server_log: str = ""


class Controller(Protocol):
    """What `fleetctl` asks of a controller, in this process or behind a socket. Raises FleetError
    kinds only.
    """

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = ""
    ) -> str:
        """Take a job; the result is its id. `only_connected`: no trial waits for a host that does
        not answer. Raises ConfigError.

        `request_key`: the same one again is the same job, so that a submit whose answer was lost
        can be repeated; empty: always a new one.
        """
        ...

    async def jobs(self) -> tuple[JobSummary, ...]:
        """All jobs, the newest first."""
        ...

    async def job(self, job_id: str) -> JobDetail:
        """One job by its id or a unique start of it. Raises ConfigError when there is none."""
        ...

    def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """What changes, until the job is over."""
        ...

    async def cancel(self, job_id: str) -> int:
        """Cancel; the result counts the trials that this ended."""
        ...

    async def hosts(self) -> tuple[HostStatus, ...]:
        """All hosts that the controller knows."""
        ...

    async def drain(self, host: str, reason: str) -> None:
        """No new trials on a host; what runs is measured to its end. Raises NotFound."""
        ...

    async def undrain(self, host: str) -> None:
        """Trials on a host again, also where failures had set it aside. Raises NotFound."""
        ...

    def check_hosts(self, hosts: Sequence[str]) -> AsyncIterator[HostCheck]:
        """What stands in the way on each of the hosts, all when none is named, as each is ready.
        Raises NotFound.
        """
        ...

    async def results(self, job_id: str) -> JobResults:
        """Every stored run of a job."""
        ...

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """One attempt of a trial, 0 = the newest. Raises ConfigError when there is none."""
        ...
