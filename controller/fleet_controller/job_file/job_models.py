"""Owns the shape of a job file as frozen pydantic models: types, ranges and defaults of each key;
nothing that spans two keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from fleet_controller.yaml.json_schema import json_schema_of
from fleet_controller.yaml.quantities import (
    DURATION_PATTERN,
    RATIO_PATTERN,
    read_duration,
    read_ratio,
)

API_VERSION = "benchfleet/v1"
NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
JOB_NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"


def _parsed_by(code: str, read: Callable[[object], float], hint: str) -> BeforeValidator:
    def validate(written: object) -> float:
        try:
            return read(written)
        except ValueError as error:
            raise PydanticCustomError(
                code, "{problem}", {"problem": str(error), "hint": hint}
            ) from None

    return BeforeValidator(validate)


_DURATION = _parsed_by(
    "bad_duration",
    read_duration,
    "write it like `250ms`, `60s`, `30m` or `1h30m`; a plain number is seconds",
)
_RATIO = _parsed_by("bad_ratio", read_ratio, "write it like `2%` or `0.02`")
_DURATION_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"type": "number", "minimum": 0}]}
)
_RATIO_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": RATIO_PATTERN}, {"type": "number"}]}
)

Duration = Annotated[float, _DURATION, _DURATION_SCHEMA]  # seconds, may be 0
Deadline = Annotated[float, Field(gt=0), _DURATION, _DURATION_SCHEMA]  # seconds, above 0
Precision = Annotated[float, Field(gt=0, lt=1), _RATIO, _RATIO_SCHEMA]
Within = Annotated[float, Field(ge=0.001, le=0.5), _RATIO, _RATIO_SCHEMA]
Share = Annotated[float, Field(gt=0, le=1), _RATIO, _RATIO_SCHEMA]
Confidence = Annotated[float, Field(ge=0.5, lt=1), _RATIO, _RATIO_SCHEMA]
Noise = Annotated[float, Field(ge=0, lt=1), _RATIO, _RATIO_SCHEMA]
Drift = Annotated[float, Field(gt=-1, lt=1), _RATIO, _RATIO_SCHEMA]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(gt=0, le=1_000_000)]
Rate = Annotated[float, Field(gt=0, le=1_000_000)]
AnyRate = Annotated[float, Field(ge=0, le=1_000_000)]
Tokens = Annotated[int, Field(gt=0, le=1_000_000)]
Gpus = Annotated[int, Field(ge=0, le=1024)]
Priority = Annotated[int, Field(ge=-100, le=100)]
Seed = Annotated[int, Field(ge=0, le=2**53)]


def _one_or_many(written: object) -> str:
    return "many" if isinstance(written, list | tuple) else "one"


Counts = Annotated[
    Annotated[Count, Tag("one")] | Annotated[tuple[Count, ...], Tag("many"), Field(min_length=1)],
    Discriminator(_one_or_many),
]
Rates = Annotated[
    Annotated[Rate, Tag("one")] | Annotated[tuple[Rate, ...], Tag("many"), Field(min_length=1)],
    Discriminator(_one_or_many),
]


def none_as_empty(shape: Any) -> BeforeValidator:
    """`env:` with nothing below it means no variables."""
    return BeforeValidator(
        lambda written: {} if written is None else written, json_schema_input_type=shape | None
    )


_VARIABLE_SCHEMA = WithJsonSchema({"type": ["string", "number", "boolean", "null"]})
_Texts = dict[str, Annotated[str, _VARIABLE_SCHEMA]]
_TextsOrNull = dict[str, Annotated[str | None, _VARIABLE_SCHEMA]]
Variables = Annotated[_TextsOrNull, none_as_empty(_TextsOrNull)]
Labels = Annotated[_Texts, none_as_empty(_Texts)]
Arguments = Annotated[dict[str, Any], none_as_empty(dict[str, Any])]


def _warmup_requests(written: object) -> object:
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
WarmUp = Annotated[int, BeforeValidator(_warmup_requests), _WARMUP_SCHEMA]  # requests, 0 = auto


class Section(BaseModel):
    """A mapping of the job file: unknown keys are errors, values keep the type they were written
    with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(Section):
    """Which model is served."""

    path: Text = Field(description="Folder on the host, or a name that the engine can resolve.")


def _matching(code: str, pattern: str, problem: str, hint: str) -> BeforeValidator:
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
    str, _matching("bad_size", SHM_PATTERN, "is no size", "write it like `32g`"), _SHM_SCHEMA
]
_NO_CPUS = "is neither `none` nor `auto` nor a list of CPUs"
CpuBinding = Annotated[
    str,
    _matching("bad_cpus", CPUS_PATTERN, _NO_CPUS, "write a list like `0-31,64-95`"),
    _CPUS_SCHEMA,
]


class Container(Section):
    """How the server runs in a container of docker or podman."""

    image: Text = Field(description="Image with its tag or digest.")
    runtime: Literal["docker", "podman"] | None = Field(
        default=None, description="Default: the one that the host has."
    )
    shm_size: ShmSize | None = Field(
        default=None, description="Shared memory of its own, as 32g; default: that of the host."
    )
    mounts: Annotated[dict[str, Text], none_as_empty(dict[str, str])] = Field(
        default={},
        description="path inside: path on the host; `:ro` at the end mounts it read-only. The model's path is mounted anyway.",
    )
    python: Text | None = Field(
        default=None, description="Python inside the image; default python3."
    )


class PhaseTimeouts(Section):
    """How long each phase of a launch may stand still, without a line or a count that comes on; 0 =
    as long as the whole launch.
    """

    start: Duration | None = Field(default=None, description="Until the server begins; default 5m.")
    init_dist: Duration | None = Field(
        default=None, description="The processes find each other; default 10m."
    )
    load_weight: Duration | None = Field(
        default=None, description="Weights are loaded; default 15m."
    )
    kv_alloc: Duration | None = Field(
        default=None, description="Memory for the cache is taken; default 5m."
    )
    capture_graph: Duration | None = Field(
        default=None, description="Graphs are captured; default 15m."
    )
    warm_up: Duration | None = Field(
        default=None, description="Kernels are compiled and tuned; default 30m."
    )
    http_bind: Duration | None = Field(
        default=None, description="The port is bound and the server asks itself; default 10m."
    )


class Simulation(Section):
    """Knobs of the simulated engine; every one is off unless written."""

    time_scale: float = Field(
        default=1.0, gt=0, le=1000, description="Seconds of the model that pass in one real second."
    )
    seed: Seed = Field(default=0, description="Seed of all simulated noise.")
    launch_noise: Noise = Field(
        default=0.0, description="Relative standard deviation between launches."
    )
    run_noise: Noise = Field(
        default=0.0, description="Relative standard deviation between runs of one launch."
    )
    drift_per_hour: Drift = Field(
        default=0.0, description="Relative slow drift in an hour of the model's time."
    )
    ready_after: Duration = Field(
        default=0.0, description="Real time before the server answers healthy."
    )
    crash_after: Duration = Field(
        default=0.0, description="Real time after readiness until it kills itself; 0 = never."
    )
    hang: bool = Field(default=False, description="Accept requests and never answer them.")
    ignore_term: bool = Field(default=False, description="Ignore SIGTERM.")
    short_outputs: bool = Field(
        default=False, description="Stop at half of the tokens that were asked for."
    )
    wrong_identity: bool = Field(default=False, description="Answer with another model's name.")
    lost_env: tuple[Text, ...] = Field(
        default=(), description="Variables that the server does not see."
    )


class Engine(Section):
    """What is launched, or what already runs and is measured."""

    kind: Literal["sglang", "simulated", "external"] = Field(
        description="sglang, simulated, or external: a server that already runs."
    )
    python: Text | None = Field(
        default=None, description="Python on the host whose environment holds SGLang."
    )
    container: Container | None = Field(
        default=None, description="An image that holds SGLang, in place of `python`."
    )
    entry: Literal["launch_server", "serve"] | None = Field(
        default=None,
        description="python -m sglang.launch_server (default), or sglang serve, from 0.5.5.",
    )
    cpu_binding: CpuBinding | None = Field(
        default=None, description="none (default), auto: the CPUs nearest to the GPUs, or a list."
    )
    nodes: Annotated[int, Field(gt=0, le=1024)] = Field(
        default=1, description="Hosts of one server."
    )
    phase_timeouts: PhaseTimeouts | None = Field(
        default=None, description="How long a phase of a launch may stand still."
    )
    proof: Literal["auto", "witness", "timed", "off"] = Field(
        default="auto", description="Where NCCL's own log of the proof comes from."
    )
    url: Text | None = Field(default=None, description="Address of an external server.")
    gpus: Gpus | None = Field(
        default=None, description="GPUs of one launch; default: from the parallel sizes in args."
    )
    args: Arguments = Field(
        default={}, description="Server arguments by SGLang's own names, underscores for dashes."
    )
    env: Variables = Field(
        default={}, description="The server's variables. Nothing is inherited from a shell."
    )
    ready_timeout: Deadline = Field(
        default=1800.0, description="How long a launch may take until the server is ready."
    )
    stop_timeout: Deadline = Field(
        default=30.0,
        description="How long the server may take to end after SIGTERM, before SIGKILL.",
    )
    simulation: Simulation | None = Field(
        default=None, description="Knobs of the simulated engine."
    )


class Level(Section):
    """One setting of a factor, laid over the engine; null takes an argument or a variable away."""

    args: Arguments = Field(default={}, description="Arguments to set; null removes one.")
    env: Variables = Field(default={}, description="Variables to set; null removes one.")
    simulation: Simulation | None = Field(
        default=None, description="Knobs of the simulated engine to set."
    )


Levels = Annotated[dict[Name, Annotated[Level, none_as_empty(Level)]], Field(min_length=1)]


class Slo(Section):
    """Limits that a request must keep to count as good."""

    ttft_p99: Deadline | None = Field(
        default=None, description="Limit on the time to the first token."
    )
    tpot_p99: Deadline | None = Field(
        default=None, description="Limit on the time per output token."
    )


class Stage(Section):
    """A part of a ramp: the rate goes in a straight line from `start` to `end`."""

    start: AnyRate = Field(description="Requests a second when the stage begins; 0 = none.")
    end: AnyRate = Field(
        description="Requests a second when it ends; the same as `start` holds the rate."
    )
    duration: Deadline = Field(description="How long the stage lasts.")


class Uniform(Section):
    """Every length from the least to the most is as likely."""

    min: Tokens = Field(description="Least tokens.")
    max: Tokens = Field(description="Most tokens.")


class Lognormal(Section):
    """Most lengths are near the median, a few are many times longer."""

    median: Annotated[float, Field(ge=1, le=1_000_000)] = Field(
        description="Tokens that half of the lengths are below."
    )
    sigma: Annotated[float, Field(gt=0, le=5)] = Field(
        description="Standard deviation of the natural logarithm."
    )
    max: Tokens = Field(description="Most tokens; what is drawn above it becomes this.")


class Lengths(Section):
    """Lengths that are drawn from the seed, the same for every variant and every run."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["uniform"]}, {"required": ["lognormal"]}]}
    )

    uniform: Uniform | None = Field(default=None, description="{min, max}")
    lognormal: Lognormal | None = Field(default=None, description="{median, sigma, max}")


def _fixed_or_drawn(written: object) -> str:
    return "drawn" if isinstance(written, dict | Lengths) else "fixed"


TokenCounts = Annotated[
    Annotated[Tokens, Tag("fixed")] | Annotated[Lengths, Tag("drawn")],
    Discriminator(_fixed_or_drawn),
]
_LOADS: list[JsonValue] = [
    {"required": ["concurrency", "output_tokens"]},
    {"required": ["rate", "duration", "output_tokens"]},
    {"required": ["ramp", "output_tokens"]},
    {"required": ["trace"]},
    {"required": ["search", "output_tokens"]},
    {"required": ["search", "mix"]},
    {"required": ["concurrency", "mix"]},
    {"required": ["rate", "duration", "mix"]},
    {"required": ["ramp", "mix"]},
]


class SharedPrefix(Section):
    """Requests that begin alike, as those of one application do."""

    groups: Count = Field(
        description="How many beginnings there are; request n has number n modulo groups."
    )
    tokens: Tokens = Field(description="About how many tokens each beginning has.")


class Sessions(Section):
    """Requests that follow one another in a conversation, each with all that was said before."""

    turns: Annotated[int, Field(ge=2, le=1000)] = Field(description="Requests of a session.")
    think_time: Duration = Field(
        default=0.0,
        description="Mean of what passes between an answer and the next request; exponential.",
    )


class Search(Section):
    """The highest load at which the workload's `slo` is met, looked for run by run in every launch."""

    of: Literal["rate", "concurrency"] = Field(
        description="Which load: requests a second, or requests in flight at once."
    )
    from_: Rate = Field(alias="from", description="The first load; should be met surely.")
    to: Rate = Field(description="No load is higher.")
    within: Within = Field(
        default=0.05,
        description="Ends when the lowest load not met is at most so much above the highest met.",
    )
    goodput: Share = Field(
        default=0.99,
        description="Share of a run's requests that must meet the slo; failed ones do not.",
    )


class Requests(Section):
    """What one kind of requests asks."""

    prompts: Text | None = Field(
        default=None, description="builtin:NAME, file:PATH, or random; default builtin:chat."
    )
    input_tokens: TokenCounts | None = Field(
        default=None, description="Of random prompts: their length."
    )
    output_tokens: TokenCounts | None = Field(
        default=None,
        description="Exact length of each answer: a number, or a distribution; default of a trace: as it says.",
    )
    shared_prefix: SharedPrefix | None = Field(
        default=None, description="Requests that begin alike: {groups, tokens}."
    )


class Part(Requests):
    """A kind of requests in a mixture."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        default=1.0, description="Its share is this by the sum of all weights."
    )
    output_tokens: TokenCounts = Field(
        description="Exact length of each answer: a number, or a distribution."
    )


class Workload(Requests):
    """A load pattern: a closed loop by `concurrency`, an open one by `rate`, `ramp` or `trace`, or
    a search for the highest of either.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": _LOADS})

    concurrency: Counts | None = Field(
        default=None, description="Requests in flight at once; a list makes one workload each."
    )
    rate: Rates | None = Field(
        default=None,
        description="Requests a second, whatever the server does; a list makes one workload each.",
    )
    ramp: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="A rate that changes: stages, one after the other."
    )
    search: Search | None = Field(
        default=None,
        description="The highest rate or concurrency that meets the slo: {of, from, to, within, goodput}.",
    )
    arrivals: Literal["constant", "poisson", "gamma"] | None = Field(
        default=None, description="How requests arrive; default poisson."
    )
    burstiness: Annotated[float, Field(ge=0.01, le=100)] | None = Field(
        default=None,
        description="Of gamma arrivals: the shape of their gaps; 1 = poisson, below 1 = in bursts, above 1 = more even.",
    )
    trace: Text | None = Field(
        default=None, description="File of requests that are replayed: Mooncake JSONL, or CSV."
    )
    speed: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        default=None, description="Of a trace: 2 = twice as fast; default 1."
    )
    duration: Deadline | None = Field(
        default=None,
        description="How long requests of a rate arrive, in each run; or how much of a trace is replayed.",
    )
    requests: Count | None = Field(
        default=None,
        description="Of one run; default 1 at concurrency 1, else max(4, 2 x concurrency); of a trace: the first; all.",
    )
    mix: Annotated[tuple[Part, ...], Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Several kinds of requests, in place of prompts, input_tokens, output_tokens and shared_prefix.",
    )
    vocabulary: Annotated[int, Field(ge=16, le=10_000_000)] | None = Field(
        default=None, description="Of the model: random token ids are below it; default 30000."
    )
    force_random: bool = Field(
        default=False, description="Random prompts though a variant speculates."
    )
    api: Literal["chat", "completions", "generate"] = Field(
        default="chat", description="Endpoint that is measured."
    )
    sessions: Sessions | None = Field(
        default=None,
        description="Conversations of several turns: {turns, think_time}; closed loop.",
    )
    cache: Literal["salt", "flush", "shared"] | None = Field(
        default=None,
        description="What the prefix cache may find: nothing; what this run sent; what was ever sent. Default salt or flush.",
    )
    slo: Slo | None = Field(default=None, description="Limits for goodput.")
    request_timeout: Deadline = Field(
        default=600.0, description="A request that takes longer has failed."
    )


class Runs(Section):
    """How many measured runs a workload gets inside one launch."""

    min: Annotated[int, Field(gt=0, le=10_000)] = Field(
        default=5, description="At least so many valid runs."
    )
    max: Annotated[int, Field(gt=0, le=10_000)] | None = Field(
        default=None, description="At most so many; default 20, or min if more."
    )


class Measure(Section):
    """How sure the verdict must be."""

    launches: Annotated[int, Field(gt=0, le=10_000)] = Field(
        default=3, description="Launches of each variant on each host."
    )
    runs: Runs = Field(default=Runs(), description="Runs inside one launch.")
    precision: Precision = Field(
        default=0.02,
        description="Relative half-width of the interval over runs at which a workload ends.",
    )
    confidence: Confidence = Field(default=0.95, description="Confidence of every interval.")
    margin: Precision = Field(
        default=0.02, description="Differences below this do not matter: EQUIVALENT."
    )
    warmup: WarmUp = Field(
        default=0,
        description="auto: until the runs are steady; or a number of requests, and every run counts.",
    )
    seed: Seed = Field(default=1, description="Seed of the order of launches and of prompts.")


class Hosts(Section):
    """Where trials run."""

    names: tuple[Text, ...] = Field(
        default=(), description="Hosts by name; empty = all that match the labels."
    )
    labels: Labels = Field(default={}, description="Labels that a host must carry.")
    placement: Literal["every_host", "any_host"] = Field(
        default="every_host", description="Every block on every host, or each on one."
    )
    share: bool = Field(
        default=False,
        description="Let trials of sharing jobs run side by side on a host, each on GPUs of its own.",
    )


class LoadHosts(Section):
    """Where the load comes from."""

    names: tuple[Text, ...] = Field(
        default=(), description="Hosts by name; empty = all that match the labels."
    )
    labels: Labels = Field(
        default={},
        description="Labels that a host must carry; without names and labels: hosts that are load_only.",
    )


class Load(Section):
    """Load from other hosts than the server's, through a Ray cluster of each attempt's own."""

    hosts: LoadHosts = Field(
        default=LoadHosts(),
        description="Which hosts send; those that get trials of the job never do.",
    )
    shards: Annotated[int, Field(gt=0, le=1024)] | None = Field(
        default=None, description="Processes that send, over all load hosts; default: one a host."
    )


class JobFile(Section):
    """A job of benchfleet."""

    model_config = ConfigDict(
        title="benchfleet job", json_schema_extra={"patternProperties": {"^x-": {}}}
    )

    apiVersion: Literal["benchfleet/v1"] = Field(description="Version of this format.")
    kind: Literal["Job"] = Field(description="Job.")
    name: JobName = Field(description="A label of small letters, digits and dashes.")
    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(description="What is launched, or measured as it runs.")
    factors: dict[Name, Levels] = Field(
        default={},
        description="factor: {level: {args, env, simulation}}; every combination is a variant.",
    )
    exclude: tuple[Mapping[str, str], ...] = Field(
        default=(), description="Combinations, in part or in full, that are left out."
    )
    baseline: dict[str, str] | None = Field(
        default=None, description="factor: level to compare with; default: the first of each."
    )
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)] = Field(
        description="Load patterns, all measured in every launch."
    )
    measure: Measure = Field(default=Measure(), description="How often, and how sure.")
    hosts: Hosts = Field(default=Hosts(), description="Where.")
    load: Load | None = Field(
        default=None, description="Load from other hosts; default: from the server's own."
    )
    priority: Priority = Field(
        default=0,
        description="Higher goes first, -100 to 100; nothing that runs is cut short for it.",
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file. It accepts all that the loader accepts; rules that span
    keys belong to `lint`.
    """
    return json_schema_of(JobFile, "benchfleet job")
