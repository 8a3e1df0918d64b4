"""Owns the frozen values that describe one trial, field for field as in `v1/trial.proto`; decides
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import sha256
from typing import Any

from fleet_protos.errors import ErrorKind
from fleet_protos.search_types import CONCURRENCY, RATE, Search, Searched

__all__ = [
    "Artifact", "AttachedFile", "Container", "EngineKind", "EngineSpec", "ErrorKind", "Gang", "Gate", "GateEffect", "Lengths",
    "LoadPlan", "Measure", "Outcome", "Part", "Phase", "RunResult", "Search", "Searched", "SharedPrefix", "Simulation", "Slo", "Stage",
    "TrialSpec", "Workload",
]  # fmt: skip

SEARCH_MIN_REQUESTS = 10  # requests of a run at the low loads of a search


class EngineKind(IntEnum):
    """What the agent launches, or `EXTERNAL`: only measures."""

    UNSPECIFIED = 0
    SGLANG = 1
    SIMULATED = 2
    EXTERNAL = 3


class Phase(IntEnum):
    """Where a trial is."""

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
    """Knobs of the simulated engine; see `trial.proto` for each unit."""

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
    """How a server runs in a container; an empty image means that it does not. See `trial.proto`."""

    image: str = ""
    runtime: str = ""
    shm_size: str = ""
    mounts: Mapping[str, str] = field(default_factory=dict)
    python: str = ""


@dataclass(frozen=True, slots=True)
class Gang:
    """The place of this host in a server over several; 0 or 1 nodes: the server is on one host."""

    nodes: int = 0
    rank: int = 0
    init_address: str = ""
    hold_limit_s: float = 0.0

    @property
    def is_member(self) -> bool:
        """It holds a part of a server that another host serves."""
        return self.rank > 0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to launch. `args` holds SGLang's own names with underscores; a flag is True, an absent
    one is not in it.
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
class Slo:
    """Limits on 99th percentiles in seconds; 0 = not asked."""

    ttft_p99_s: float = 0.0
    tpot_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an open loop in which the rate goes in a straight line from one value to another."""

    start_per_s: float = 0.0
    end_per_s: float = 0.0
    duration_s: float = 0.0

    @property
    def requests(self) -> float:
        """How many are due in it."""
        return (self.start_per_s + self.end_per_s) / 2 * self.duration_s


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens each of many texts has, drawn from the seed; an empty distribution does not
    say. See `trial.proto`.
    """

    distribution: str = ""
    least: int = 0
    most: int = 0
    median: float = 0.0
    sigma: float = 0.0

    @property
    def mean(self) -> float:
        """Of the distribution, before what is above `most` is cut to it; 0 when it does not say."""
        if self.distribution == "lognormal":
            return self.median * math.exp(self.sigma**2 / 2)
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Requests of one group begin with the same text of about so many tokens; no groups: none does."""

    groups: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of requests in a mixture, `weight` by the sum of all weights of them; the other fields
    are those of a workload.
    """

    weight: float = 1.0
    prompts: str = ""
    output_tokens: int = 0
    output: Lengths = field(default_factory=Lengths)
    input_tokens: int = 0
    input: Lengths = field(default_factory=Lengths)
    prefix: SharedPrefix = field(default_factory=SharedPrefix)


@dataclass(frozen=True, slots=True)
class Workload:
    """One load pattern: closed loop when `concurrency` > 0, else an open one, by `rate_per_s`,
    `stages` or `trace`; never two of these.

    With a `search` it is none of them: `at` gives the workload of one load.
    """

    name: str = ""
    concurrency: int = 0
    requests: int = 0
    rate_per_s: float = 0.0
    arrivals: str = ""
    duration_s: float = 0.0
    prompts: str = ""
    output_tokens: int = 0
    api: str = ""
    slo: Slo = field(default_factory=Slo)
    request_timeout_s: float = 600.0
    burstiness: float = 0.0
    stages: tuple[Stage, ...] = ()
    output: Lengths = field(default_factory=Lengths)
    trace: str = ""
    speed: float = 0.0
    input_tokens: int = 0
    input: Lengths = field(default_factory=Lengths)
    cache: str = ""
    prefix: SharedPrefix = field(default_factory=SharedPrefix)
    mix: tuple[Part, ...] = ()
    turns: int = 0
    think_s: float = 0.0
    vocabulary: int = 0
    search: Search = field(default_factory=Search)

    def at_load(self, load: float) -> Workload:
        """Itself at one load of its search. Requests of a closed loop, where the job does not say:
        four waves, two sessions a user.
        """
        if self.search.of != CONCURRENCY:
            return replace(self, rate_per_s=load)
        users = round(load)
        requests = 2 * users * self.turns if self.turns > 1 else max(SEARCH_MIN_REQUESTS, 4 * users)
        return replace(self, concurrency=users, requests=self.requests or requests)

    @property
    def load(self) -> float:
        """Requests in flight of a closed loop, else a second of an open one at a single rate."""
        return float(self.concurrency) or self.rate_per_s

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its kinds of requests: those of the mixture, else the one that it is itself."""
        own = Part(
            1.0,
            self.prompts,
            self.output_tokens,
            self.output,
            self.input_tokens,
            self.input,
            self.prefix,
        )
        return self.mix or (own,)

    @property
    def shares_cache(self) -> bool:
        """The prefix cache may find what requests have in common: a hit is what was asked for."""
        return self.cache in ("flush", "shared")

    @property
    def file_refs(self) -> frozenset[str]:
        """Of the files of its trial that it names."""
        named = {
            part.prompts.removeprefix("file:")
            for part in self.parts
            if part.prompts.startswith("file:")
        }
        return frozenset({self.trace, *named} - {""})

    @property
    def is_open(self) -> bool:
        """Its requests come when they are due, whatever the server does."""
        return (
            self.rate_per_s > 0 or bool(self.stages) or bool(self.trace) or self.search.of == RATE
        )

    @property
    def fixes_lengths(self) -> bool:
        """Each answer is asked to be exactly as long as one number, or as one of its own."""
        return (
            self.output_tokens > 0 or self.output.distribution != "" or bool(self.trace or self.mix)
        )

    @property
    def mean_output_tokens(self) -> float:
        """Of an answer, over all kinds."""
        weights = sum(part.weight for part in self.parts)
        return (
            sum(part.weight * (part.output_tokens or part.output.mean) for part in self.parts)
            / weights
        )


@dataclass(frozen=True, slots=True)
class Measure:
    """How often to measure inside one launch, and when a workload is precise enough."""

    runs_min: int = 5
    runs_max: int = 20
    precision: float = 0.02
    confidence: float = 0.95
    warmup_requests: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Which other hosts the load comes from; none: from the server's own. `shards`: processes that
    send, 0 = one a host.
    """

    hosts: tuple[str, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file that a workload names, packed by `attachment.py`. `name`: KIND:PATH as the job has it;
    `sha256`: of the file itself.
    """

    name: str = ""
    sha256: str = ""
    content: str = field(default="", repr=False)

    @property
    def ref(self) -> str:
        """What workloads name it by: equal for equal contents."""
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
    """A named check that tripped; `reasons` are codes of the ways in which it did, where it has
    several.
    """

    code: str = ""
    effect: GateEffect = GateEffect.UNSPECIFIED
    message: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file kept by the agent: `name` is TRIAL/ATTEMPT/FILE below its artifact folder."""

    name: str = ""
    sha256: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """One measured repeat of a workload. Times are wall time times `time_scale`.

    `warm_up_runs`: of the valid runs up to this one, so many of the first were not steady yet. The
    newest run's word counts.
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
        """True when a gate voided the run: it is kept, and never becomes a number."""
        return any(gate.effect >= GateEffect.VOID_RUN for gate in self.gates)
