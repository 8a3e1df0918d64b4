"""Frozen values that describe one trial, field for field as in `v1/trial.proto`, which documents
each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import Any

from fleet_protos.errors import ErrorKind
from fleet_protos.search_types import Search, Searched
from fleet_protos.workload_types import Lengths, Part, SharedPrefix, Slo, Stage, Workload

__all__ = [
    "Artifact", "AttachedFile", "Container", "EngineKind", "EngineSpec", "ErrorKind", "Gang",
    "Gate", "GateEffect", "Lengths", "LoadPlan", "Measure", "Outcome", "Part", "Phase", "RunResult",
    "Search", "Searched", "SharedPrefix", "Simulation", "Slo", "Stage", "TrialSpec", "Workload",
]  # fmt: skip


class EngineKind(IntEnum):
    """What the agent launches. An `EXTERNAL` server already runs and is only measured."""

    UNSPECIFIED = 0
    SGLANG = 1
    SIMULATED = 2
    EXTERNAL = 3


class Phase(IntEnum):
    """Where a trial is; see `trial.proto`."""

    UNSPECIFIED = 0
    QUEUED = 1
    LAUNCHING = 2
    WARMING = 3
    MEASURING = 4
    COLLECTING = 5
    STOPPING = 6
    OVER = 7


class Outcome(IntEnum):
    """How a trial ended; `UNSPECIFIED` until it is over."""

    UNSPECIFIED = 0
    OK = 1
    FAILED = 2
    CANCELLED = 3


class GateEffect(IntEnum):
    """What a tripped gate does to the results."""

    UNSPECIFIED = 0
    FLAG = 1
    VOID_RUN = 2
    VOID_TRIAL = 3


@dataclass(frozen=True, slots=True)
class Simulation:
    """Knobs of the simulated engine; `trial.proto` gives the unit of each."""

    time_scale: float = 1.0
    seed: int = 0
    launch_noise: float = 0.0
    run_noise: float = 0.0
    drift_per_hour: float = 0.0
    ready_after_s: float = 0.0
    crash_after_s: float = 0.0
    hang: bool = False
    ignore_term: bool = False
    short_outputs: bool = False
    wrong_identity: bool = False
    lost_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """How a server runs in a container. An empty `image` means that it runs without one."""

    image: str = ""
    runtime: str = ""
    shm_size: str = ""
    mounts: Mapping[str, str] = field(default_factory=dict)
    python: str = ""


@dataclass(frozen=True, slots=True)
class Gang:
    """This host's place in a server that spans several hosts; 0 or 1 `nodes` means one host."""

    nodes: int = 0
    rank: int = 0
    init_address: str = ""
    hold_limit_s: float = 0.0

    @property
    def is_member(self) -> bool:
        """Whether this host holds a part of a server that another host serves."""
        return self.rank > 0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to launch. `args` uses SGLang's own names with underscores; a flag that is set is True,
    and a flag that is not set is absent.
    """

    kind: EngineKind = EngineKind.UNSPECIFIED
    model_path: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    python: str = ""
    url: str = ""
    ready_timeout_s: float = 1800.0
    stop_timeout_s: float = 30.0
    simulation: Simulation = field(default_factory=Simulation)
    container: Container = field(default_factory=Container)
    entry: str = ""
    cpu_binding: str = ""
    phase_timeouts_s: Mapping[str, float] = field(default_factory=dict)
    proof: str = ""
    gang: Gang = field(default_factory=Gang)


@dataclass(frozen=True, slots=True)
class Measure:
    """How often to measure within one launch, and when a workload is precise enough."""

    runs_min: int = 5
    runs_max: int = 20
    precision: float = 0.02
    confidence: float = 0.95
    warmup_requests: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Which other hosts send the load; without `hosts`, the server's own host sends it. `shards` is
    the number of sending processes over all hosts; 0 means one per host.
    """

    hosts: tuple[str, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file that a workload names, packed by `attachment.py`.

    `name` is KIND:PATH as the job file has it; `sha256` is of the original file, not of `content`.
    """

    name: str = ""
    sha256: str = ""
    content: str = field(default="", repr=False)

    @property
    def ref(self) -> str:
        """The name by which workloads refer to it: equal for equal contents."""
        return sha256(self.content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One launch of one variant on one host: the unit of scheduling, retry and statistics."""

    trial_id: str = ""
    attempt: int = 1
    job_id: str = ""
    job_name: str = ""
    variant: str = ""
    levels: Mapping[str, str] = field(default_factory=dict)
    block: int = 0
    host: str = ""
    engine: EngineSpec = field(default_factory=EngineSpec)
    workloads: tuple[Workload, ...] = ()
    measure: Measure = field(default_factory=Measure)
    witness: bool = False
    shared: bool = False
    load: LoadPlan = field(default_factory=LoadPlan)
    files: tuple[AttachedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Gate:
    """A named check that tripped. `reasons` are codes that say how it tripped, for a gate that can
    trip in several ways.
    """

    code: str = ""
    effect: GateEffect = GateEffect.UNSPECIFIED
    message: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that the agent keeps. `name` is TRIAL/ATTEMPT/FILE below its artifact folder."""

    name: str = ""
    sha256: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """One measured repeat of a workload. Times are wall time multiplied by `time_scale`.

    `warm_up_runs` counts the first runs, among the valid ones up to this run, that were not steady
    yet. The newest run's count supersedes earlier ones.
    """

    workload: str = ""
    index: int = 0
    started_unix_ns: int = 0
    duration_s: float = 0.0
    time_scale: float = 1.0
    requests_ok: int = 0
    requests_failed: int = 0
    output_tokens: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    artifact: Artifact = field(default_factory=Artifact)
    warm_up_runs: int = 0
    searched: Searched = field(default_factory=Searched)

    @property
    def void(self) -> bool:
        """Whether a gate voided the run: it is kept but never counts in a result."""
        return any(gate.effect >= GateEffect.VOID_RUN for gate in self.gates)
