"""The events of a trial as frozen values, field for field as in `v1/trial.proto`, which documents
each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Artifact, Gate, Outcome, Phase, RunResult, TrialSpec


@dataclass(frozen=True, slots=True)
class TrialAccepted:
    """The agent has accepted the trial and is responsible for ending it."""

    spec: TrialSpec = field(default_factory=TrialSpec)


@dataclass(frozen=True, slots=True)
class ServerLaunching:
    """A server is about to be started with `token` in its environment."""

    token: str = ""
    port: int = 0
    gpus: tuple[int, ...] = ()
    witness: bool = False


@dataclass(frozen=True, slots=True)
class ServerLaunched:
    """The server process exists. `start_ticks` is field 22 of /proc/PID/stat and reveals a reused
    pid.
    """

    pid: int = 0
    session_id: int = 0
    start_ticks: int = 0
    url: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    log_path: str = ""
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ServerProgressed:
    """The launch advanced: `done` of `total` weight shards or graphs in this phase, 0 of 0 for a
    phase that has no count.
    """

    phase: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The server answers, is the one that was launched, and completed a request. `load_s` is wall
    seconds since launch.
    """

    load_s: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigurationProved:
    """The configuration that took effect, as the server itself reports it, and the gates that
    tripped on it.
    """

    effective_args: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    witness: bool = False
    nccl: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """Warm-up requests were sent. Their rate is recorded but never counts in a result."""

    workload: str = ""
    requests: int = 0
    output_tok_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A run was measured and its raw data is on disk."""

    run: RunResult = field(default_factory=RunResult)


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Our load generator failed in the named workload."""

    workload: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ServerFailed:
    """The server did not start, became unhealthy or exited. `exit_code` is negative for
    a signal.
    """

    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""
    exit_code: int = 0
    log_tail: str = ""
    cause_line: str = ""
    rank: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked to end the trial."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceCollected:
    """Logs and metrics of the server are in the artifact folder."""

    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerStopped:
    """The server was stopped. `left_over` names processes that survived; `ended_by` is none, term
    or kill.
    """

    ended_by: str = "none"
    took_s: float = 0.0
    left_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRestarted:
    """The agent restarted and found this trial unfinished in its journal."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class TrialOver:
    """The trial is over; its last event."""

    outcome: Outcome = Outcome.UNSPECIFIED
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""


Body = (
    TrialAccepted | ServerLaunching | ServerLaunched | ServerReady | ConfigurationProved
    | WarmedUp | RunFinished | LoadFailed | ServerFailed | CancelRequested | EvidenceCollected
    | ServerStopped | AgentRestarted | TrialOver | ServerProgressed
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of an agent's journal.

    `cause` is the sequence number of the event that led to it, 0 for one from outside. `phase` is
    the trial's phase after the event.
    """

    sequence: int = 0
    time_unix_ns: int = 0
    trial_id: str = ""
    attempt: int = 0
    cause: int = 0
    phase: Phase = Phase.UNSPECIFIED
    body: Body | None = None  # None: an event kind that this version does not know
