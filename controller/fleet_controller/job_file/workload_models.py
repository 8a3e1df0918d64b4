"""Defines the `workloads` section of a job file as frozen pydantic models: types, ranges and
defaults of each key.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
)

from fleet_controller.yaml.fields import (
    Deadline,
    Duration,
    Section,
    Share,
    Text,
    Within,
)

Count = Annotated[int, Field(gt=0, le=1_000_000)]
Rate = Annotated[float, Field(gt=0, le=1_000_000)]
AnyRate = Annotated[float, Field(ge=0, le=1_000_000)]
Tokens = Annotated[int, Field(gt=0, le=1_000_000)]

BUILTIN_PREFIX: Final = "builtin:"
FILE_PREFIX: Final = "file:"
RANDOM_PROMPTS: Final = "random"
RANDOM_ON_WIRE: Final = "random:ids"
DEFAULT_PROMPTS: Final = "builtin:chat"


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


class Slo(Section):
    """Limits that a request must meet to count as good."""

    ttft_p99: Deadline | None = Field(
        default=None, description="Limit on the time to the first token."
    )
    tpot_p99: Deadline | None = Field(
        default=None, description="Limit on the time per output token."
    )


class Stage(Section):
    """A part of a ramp: the rate changes linearly from `start` to `end`."""

    start: AnyRate = Field(description="Requests a second when the stage begins; 0 = none.")
    end: AnyRate = Field(
        description="Requests a second when the stage ends. The value of `start` keeps the rate."
    )
    duration: Deadline = Field(description="How long the stage lasts.")


class Uniform(Section):
    """Every length from `min` to `max` is equally likely."""

    min: Tokens = Field(description="Smallest number of tokens.")
    max: Tokens = Field(description="Largest number of tokens.")


class Lognormal(Section):
    """Most lengths are near the median. A few lengths are many times longer."""

    median: Annotated[float, Field(ge=1, le=1_000_000)] = Field(
        description="Number of tokens that half of the lengths are below."
    )
    sigma: Annotated[float, Field(gt=0, le=5)] = Field(
        description="Standard deviation of the natural logarithm."
    )
    max: Tokens = Field(description="Largest number of tokens. Longer lengths are cut to it.")


class Lengths(Section):
    """Lengths that are drawn from the seed. They are the same for every variant and every run."""

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
    """Requests that begin with the same text, as the requests of one application do."""

    groups: Count = Field(
        description="Number of different beginnings; request n has beginning n modulo groups."
    )
    tokens: Tokens = Field(description="Approximate number of tokens of each beginning.")


class Sessions(Section):
    """Requests that follow one another in a conversation. Each request carries the whole
    conversation so far.
    """

    turns: Annotated[int, Field(ge=2, le=1000)] = Field(
        description="Number of requests in a session."
    )
    think_time: Duration = Field(
        default=0.0,
        description=(
            "Mean of the exponentially distributed time from an answer to the next request."
        ),
    )


class Search(Section):
    """A search for the highest load that meets the workload's `slo`. Each launch searches run by
    run.
    """

    of: Literal["rate", "concurrency"] = Field(
        description=(
            "Which load to search: rate (requests a second) or concurrency (requests in flight)."
        )
    )
    from_: Rate = Field(
        alias="from", description="The first load, which should surely meet the slo."
    )
    to: Rate = Field(description="The highest load to try.")
    within: Within = Field(
        default=0.05,
        description=(
            "The search ends when the lowest load that fails the slo is at most this share above "
            "the highest load that meets it."
        ),
    )
    goodput: Share = Field(
        default=0.99,
        description=(
            "Share of a run's requests that must meet the slo. A failed request does not meet it."
        ),
    )


class Requests(Section):
    """One kind of requests: its prompts and its lengths."""

    prompts: Text | None = Field(
        default=None,
        description="Prompts to use: builtin:NAME, file:PATH, or random. Default: builtin:chat.",
    )
    input_tokens: TokenCounts | None = Field(default=None, description="Length of random prompts.")
    output_tokens: TokenCounts | None = Field(
        default=None,
        description=(
            "Exact length of each answer: a number, or a distribution. With a trace, the default "
            "is the trace's lengths."
        ),
    )
    shared_prefix: SharedPrefix | None = Field(
        default=None, description="Requests that begin with the same text: {groups, tokens}."
    )


class Part(Requests):
    """One kind of requests in a mixture."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        default=1.0,
        description=(
            "This part's share of the requests is its weight divided by the sum of all weights."
        ),
    )
    output_tokens: TokenCounts = Field(
        description="Exact length of each answer: a number, or a distribution."
    )


JudgedMetric = Literal[
    "output_tok_s",
    "tok_s_per_user",
    "ttft_s_p50",
    "ttft_s_p99",
    "tpot_s_mean",
    "tpot_s_p50",
    "tpot_s_p99",
    "icl_s_p50",
    "icl_s_p99",
    "e2e_s_p50",
    "e2e_s_p99",
]  # HIGHER_IS_BETTER without the results of searches; a test compares them


class Workload(Requests):
    """A load pattern. `concurrency` makes a closed loop. `rate`, `ramp` or `trace` makes an open
    loop. `search` looks for the highest rate or concurrency.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": _LOADS})

    concurrency: Counts | None = Field(
        default=None,
        description="Requests in flight at once. A list makes one workload for each value.",
    )
    rate: Rates | None = Field(
        default=None,
        description=(
            "Requests a second, however fast the server answers. A list makes one workload for "
            "each value."
        ),
    )
    ramp: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="A rate that changes, as a list of stages."
    )
    search: Search | None = Field(
        default=None,
        description=(
            "Find the highest rate or concurrency that meets the slo: {of, from, to, within, "
            "goodput}."
        ),
    )
    arrivals: Literal["constant", "poisson", "gamma"] | None = Field(
        default=None, description="How requests arrive; default poisson."
    )
    burstiness: Annotated[float, Field(ge=0.01, le=100)] | None = Field(
        default=None,
        description=(
            "Shape of the gaps between gamma arrivals: 1 = Poisson, below 1 = bursts, above 1 = "
            "more even."
        ),
    )
    trace: Text | None = Field(
        default=None, description="File of requests to replay: Mooncake JSONL, or CSV."
    )
    speed: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        default=None, description="Speed of a trace: 2 = twice as fast; default 1."
    )
    duration: Deadline | None = Field(
        default=None,
        description=(
            "How long requests arrive in each run, or how much of a trace each run replays."
        ),
    )
    requests: Count | None = Field(
        default=None,
        description=(
            "Number of requests of one run. Default: 1 at concurrency 1, else max(4, 2 x "
            "concurrency). Of a trace, this many requests are replayed; default: all."
        ),
    )
    mix: Annotated[tuple[Part, ...], Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description=(
            "Several kinds of requests, in place of prompts, input_tokens, output_tokens and "
            "shared_prefix."
        ),
    )
    vocabulary: Annotated[int, Field(ge=16, le=10_000_000)] | None = Field(
        default=None,
        description=(
            "Size of the model's vocabulary. Random token ids are below it. Default: 30000."
        ),
    )
    force_random: bool = Field(
        default=False, description="Allow random prompts although a variant speculates."
    )
    judge: Annotated[tuple[JudgedMetric, ...], Field(min_length=1)] | None = Field(
        default=None,
        description=(
            "Metrics that get a verdict. Default: output_tok_s for a closed loop; ttft_s_p50, "
            "tpot_s_mean and e2e_s_p50 for an open loop."
        ),
    )
    api: Literal["chat", "completions", "generate"] = Field(
        default="chat", description="API that is measured."
    )
    sessions: Sessions | None = Field(
        default=None,
        description="Conversations of several turns, in a closed loop: {turns, think_time}.",
    )
    cache: Literal["salt", "flush", "shared"] | None = Field(
        default=None,
        description=(
            "What the prefix cache may contain: salt = nothing, flush = prompts of this run, "
            "shared = all earlier prompts. Default salt or flush."
        ),
    )
    slo: Slo | None = Field(default=None, description="Limits for goodput.")
    request_timeout: Deadline = Field(
        default=600.0, description="A request that takes longer has failed."
    )
