"""Defines the job file as frozen pydantic models: types, ranges and defaults of each key. The
`workloads` section is in workload_models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from fleet_controller.job_file.workload_models import Workload
from fleet_controller.yaml.fields import (
    Confidence,
    Deadline,
    Drift,
    Duration,
    Gpus,
    JobName,
    Labels,
    Name,
    Noise,
    Precision,
    Section,
    Text,
    Variables,
    none_as_empty,
)
from fleet_controller.yaml.json_schema import json_schema_of

API_VERSION = "benchfleet/v1"
Priority = Annotated[int, Field(ge=-100, le=100)]
Seed = Annotated[int, Field(ge=0, le=2**53)]
Arguments = Annotated[dict[str, Any], none_as_empty(dict[str, Any])]


def _read_warmup(written: object) -> object:
    if written == "auto":
        return 0
    if isinstance(written, bool) or not isinstance(written, int) or not 0 < written <= 100_000:
        raise PydanticCustomError(
            "wrong_type",
            "{problem}",
            {"problem": "is neither `auto` nor a number of requests above 0", "hint": ""},
        )
    return written


_WARMUP_SCHEMA = WithJsonSchema(
    {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 100_000}]}
)
WarmUp = Annotated[int, BeforeValidator(_read_warmup), _WARMUP_SCHEMA]  # requests, 0 = auto


class Model(Section):
    """Which model is served."""

    path: Text = Field(description="A folder on the host, or a name that the engine can resolve.")


def _matched_by(code: str, pattern: str, problem: str, hint: str) -> BeforeValidator:
    def validate(written: object) -> str:
        text = (
            str(written) if isinstance(written, int) and not isinstance(written, bool) else written
        )
        if isinstance(text, str) and re.fullmatch(pattern, text):
            return text
        raise PydanticCustomError(code, "{problem}", {"problem": problem, "hint": hint})

    return BeforeValidator(validate)


SHM_PATTERN = r"^[1-9][0-9]{0,12}[bkmgBKMG]?$"
CPUS_PATTERN = r"^(none|auto|[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)$"
_SHM_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": SHM_PATTERN}, {"type": "integer", "minimum": 1}]}
)
_CPUS_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": CPUS_PATTERN}, {"type": "integer", "minimum": 0}]}
)
ShmSize = Annotated[
    str, _matched_by("bad_size", SHM_PATTERN, "is not a size", "write it like `32g`"), _SHM_SCHEMA
]
_NO_CPUS = "is neither `none`, nor `auto`, nor a list of CPUs"
CpuBinding = Annotated[
    str,
    _matched_by("bad_cpus", CPUS_PATTERN, _NO_CPUS, "write a list like `0-31,64-95`"),
    _CPUS_SCHEMA,
]


class Container(Section):
    """How the server runs in a container of docker or podman."""

    image: Text = Field(description="Image with its tag or digest.")
    runtime: Literal["docker", "podman"] | None = Field(
        default=None,
        description="docker or podman. Default: the one of them that is installed on the host.",
    )
    shm_size: ShmSize | None = Field(
        default=None,
        description="Size of the container's own shared memory, such as 32g. Default: the host's.",
    )
    mounts: Annotated[dict[str, Text], none_as_empty(dict[str, str])] = Field(
        default={},
        description=(
            "PATH_INSIDE: PATH_ON_HOST. `:ro` at the end mounts the path read-only. The model's "
            "path is always mounted."
        ),
    )
    python: Text | None = Field(
        default=None, description="Python inside the image; default python3."
    )


class PhaseTimeouts(Section):
    """How long each phase of a launch may make no progress: no new log line and no count that
    rises. 0 = as long as the whole launch may take.
    """

    start: Duration | None = Field(default=None, description="Until the server begins; default 5m.")
    init_dist: Duration | None = Field(
        default=None, description="The processes connect to each other; default 10m."
    )
    load_weight: Duration | None = Field(
        default=None, description="Weights are loaded; default 15m."
    )
    kv_alloc: Duration | None = Field(
        default=None, description="Memory for the KV cache is allocated; default 5m."
    )
    capture_graph: Duration | None = Field(
        default=None, description="Graphs are captured; default 15m."
    )
    warm_up: Duration | None = Field(
        default=None, description="Kernels are compiled and tuned; default 30m."
    )
    http_bind: Duration | None = Field(
        default=None,
        description="The port is bound and the server sends itself a request; default 10m.",
    )


class Simulation(Section):
    """Settings of the simulated engine. Each setting is off unless it is written."""

    time_scale: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Seconds of model time that pass in one real second.",
    )
    seed: Seed = Field(default=0, description="Seed of all simulated noise.")
    launch_noise: Noise = Field(
        default=0.0, description="Relative standard deviation between launches."
    )
    run_noise: Noise = Field(
        default=0.0, description="Relative standard deviation between runs of one launch."
    )
    drift_per_hour: Drift = Field(
        default=0.0, description="Relative slow change of step times in an hour of model time."
    )
    ready_after: Duration = Field(
        default=0.0, description="Real time until the server answers that it is healthy."
    )
    crash_after: Duration = Field(
        default=0.0,
        description="Real time after readiness until the server kills itself; 0 = never.",
    )
    hang: bool = Field(default=False, description="Accept requests and never answer them.")
    ignore_term: bool = Field(default=False, description="Ignore SIGTERM.")
    short_outputs: bool = Field(default=False, description="Stop at half of the requested tokens.")
    wrong_identity: bool = Field(default=False, description="Answer with another model's name.")
    lost_env: tuple[Text, ...] = Field(
        default=(), description="Variables that the server does not see."
    )


class Engine(Section):
    """The server to launch, or a running server to measure."""

    kind: Literal["sglang", "simulated", "external"] = Field(
        description="sglang and simulated are launched. external is a server that already runs."
    )
    python: Text | None = Field(
        default=None, description="Path of a Python on the host that has SGLang installed."
    )
    container: Container | None = Field(
        default=None, description="A container image with SGLang, used in place of `python`."
    )
    entry: Literal["launch_server", "serve"] | None = Field(
        default=None,
        description="launch_server (default), or serve for `sglang serve` (needs SGLang 0.5.5).",
    )
    cpu_binding: CpuBinding | None = Field(
        default=None,
        description="none (default), auto (the CPUs nearest to the GPUs), or a list of CPUs.",
    )
    nodes: Annotated[int, Field(gt=0, le=1024)] = Field(
        default=1, description="Number of hosts of one server."
    )
    phase_timeouts: PhaseTimeouts | None = Field(
        default=None, description="How long a phase of a launch may make no progress."
    )
    proof: Literal["auto", "witness", "timed", "off"] = Field(
        default="auto", description="Which launch gives the NCCL log that proves the configuration."
    )
    url: Text | None = Field(default=None, description="Address of an external server.")
    gpus: Gpus | None = Field(
        default=None,
        description="Number of GPUs of one launch. Default: what the parallel sizes in args need.",
    )
    args: Arguments = Field(
        default={},
        description="Server arguments under SGLang's own names, with underscores for dashes.",
    )
    env: Variables = Field(
        default={},
        description="The server's environment variables. Nothing is inherited from a shell.",
    )
    ready_timeout: Deadline = Field(
        default=1800.0, description="How long a launch may take until the server is ready."
    )
    stop_timeout: Deadline = Field(
        default=30.0,
        description="How long the server may take to exit after SIGTERM. Then it gets SIGKILL.",
    )
    simulation: Simulation | None = Field(
        default=None, description="Settings of the simulated engine."
    )


class Level(Section):
    """One setting of a factor, laid over the engine. null removes an argument or a variable."""

    args: Arguments = Field(default={}, description="Arguments to set. null removes an argument.")
    env: Variables = Field(default={}, description="Variables to set. null removes a variable.")
    simulation: Simulation | None = Field(
        default=None, description="Settings of the simulated engine to change."
    )


Levels = Annotated[dict[Name, Annotated[Level, none_as_empty(Level)]], Field(min_length=1)]


class Runs(Section):
    """How many measured runs a workload gets inside one launch."""

    min: Annotated[int, Field(gt=0, le=10_000)] = Field(
        default=5, description="Minimum number of valid runs."
    )
    max: Annotated[int, Field(gt=0, le=10_000)] | None = Field(
        default=None,
        description="Maximum number of valid runs. Default: 20, or min if min is greater.",
    )


class Measure(Section):
    """How often to measure, and how sure the verdict must be."""

    launches: Annotated[int, Field(gt=0, le=10_000)] = Field(
        default=3, description="Launches of each variant on each host."
    )
    runs: Runs = Field(default=Runs(), description="Runs inside one launch.")
    precision: Precision = Field(
        default=0.02,
        description=(
            "A workload is measured until the interval over its runs has this relative half-width."
        ),
    )
    confidence: Confidence = Field(default=0.95, description="Confidence of every interval.")
    margin: Precision = Field(
        default=0.02,
        description="Relative differences below this do not matter: the verdict is EQUIVALENT.",
    )
    warmup: WarmUp = Field(
        default=0,
        description=(
            "auto warms up until the runs are steady. A number is the number of requests after "
            "which every run counts."
        ),
    )
    seed: Seed = Field(default=1, description="Seed of the order of launches and of prompts.")


class Hosts(Section):
    """The hosts that trials run on."""

    names: tuple[Text, ...] = Field(
        default=(), description="Hosts by name; empty = all hosts that match the labels."
    )
    labels: Labels = Field(default={}, description="Labels that a host must have.")
    placement: Literal["every_host", "any_host"] = Field(
        default="every_host",
        description=(
            "every_host runs every block on every host. any_host runs each block on one host."
        ),
    )
    share: bool = Field(
        default=False,
        description=(
            "Let trials run next to other trials that may share their host. Each trial has its "
            "own GPUs."
        ),
    )


class LoadHosts(Section):
    """The hosts that send the load."""

    names: tuple[Text, ...] = Field(
        default=(), description="Hosts by name; empty = all hosts that match the labels."
    )
    labels: Labels = Field(
        default={},
        description=(
            "Labels that a host must have. Without names and labels, the load_only hosts are used."
        ),
    )


class Load(Section):
    """Load from hosts other than the server's host. Each attempt sends it through a Ray cluster of
    its own.
    """

    hosts: LoadHosts = Field(
        default=LoadHosts(),
        description="Hosts that send load. A host that gets trials of the job never sends load.",
    )
    shards: Annotated[int, Field(gt=0, le=1024)] | None = Field(
        default=None,
        description="Number of sending processes over all load hosts; default: one per host.",
    )


class JobFile(Section):
    """The content of a job file."""

    model_config = ConfigDict(
        title="benchfleet job", json_schema_extra={"patternProperties": {"^x-": {}}}
    )

    apiVersion: Literal["benchfleet/v1"] = Field(description="Version of this format.")
    kind: Literal["Job"] = Field(description="Job.")
    name: JobName = Field(description="A label of lower-case letters, digits and dashes.")
    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(description="The server to launch, or a running server to measure.")
    factors: dict[Name, Levels] = Field(
        default={},
        description=(
            "factor: {level: {args, env, simulation}}. Every combination of levels is a variant."
        ),
    )
    exclude: tuple[Mapping[str, str], ...] = Field(
        default=(),
        description=(
            "Combinations of levels that are left out. A combination may name only some factors."
        ),
    )
    baseline: dict[str, str] | None = Field(
        default=None,
        description="factor: level, for the variant to compare with. Default: the first levels.",
    )
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)] = Field(
        description="Load patterns. Every launch measures all of them."
    )
    measure: Measure = Field(
        default=Measure(), description="How often to measure, and how sure the verdict must be."
    )
    hosts: Hosts = Field(default=Hosts(), description="Where trials run.")
    load: Load | None = Field(
        default=None, description="Load from other hosts; default: from the server's own host."
    )
    priority: Priority = Field(
        default=0,
        description="-100 to 100, higher goes first; running trials are not interrupted.",
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file. It accepts every file that the loader accepts. Rules
    about several keys are checked only by `lint`.
    """
    return json_schema_of(JobFile, "benchfleet job")
