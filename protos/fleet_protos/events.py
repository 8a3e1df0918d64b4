"""Owns the events of a trial as frozen values, field for field as in `v1/trial.proto`; past tense,
one noun each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Artifact, Gate, Outcome, Phase, RunResult, TrialSpec


@dataclass(frozen=True, slots=True)
class TrialAccepted:
    """The agent has taken the trial and will end it."""

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
    """The process exists. `start_ticks` is field 22 of /proc/PID/stat and tells a reused pid."""

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
    """The launch came on: `done` of `total` weight shards or graphs in this phase, 0 of 0 where it
    has no count.
    """

    phase: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class ServerReady:
    """It answers, it is the one that was launched, and it completed a request. `load_s`: wall
    seconds since launch.
    """

    load_s: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigurationProved:
    """What really took effect, as the server itself shows it, and the gates that this tripped."""

    effective_args: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    witness: bool = False
    nccl: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """Requests sent before measuring; their rate is kept for the record only."""

    workload: str = ""
    requests: int = 0
    output_tok_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A run was measured and its raw data is on disk."""

    run: RunResult = field(default_factory=RunResult)


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Our own load broke in the workload named."""

    workload: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ServerFailed:
    """The server did not start, became unhealthy or exited. `exit_code` is negative for a signal."""

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
    """No process of the server is left, unless `left_over` names it. `ended_by`: none, term or
    kill.
    """

    ended_by: str = "none"
    took_s: float = 0.0
    left_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRestarted:
    """The agent came back and found this trial unfinished in its journal."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class TrialOver:
    """The end; nothing follows."""

    outcome: Outcome = Outcome.UNSPECIFIED
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""


Body = (
    TrialAccepted | ServerLaunching | ServerLaunched | ServerReady | ConfigurationProved | WarmedUp | RunFinished
    | LoadFailed | ServerFailed | CancelRequested | EvidenceCollected | ServerStopped | AgentRestarted | TrialOver | ServerProgressed
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of an agent's journal. `cause` is the sequence that led to it, 0 from outside;
    `phase` the one after it.
    """

    sequence: int = 0
    time_unix_ns: int = 0
    trial_id: str = ""
    attempt: int = 0
    cause: int = 0
    phase: Phase = Phase.UNSPECIFIED
    body: Body | None = None  # None: a kind that this version does not know
