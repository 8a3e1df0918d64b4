"""Frozen values that describe a workload, field for field as in `v1/trial.proto`, which documents
each field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fleet_protos.search_types import CONCURRENCY, RATE, Search

_SEARCH_MIN_REQUESTS = 10  # requests in a run at the low loads of a search


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits on 99th percentiles in seconds; 0 means no limit."""

    ttft_p99_s: float = 0.0
    tpot_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an open loop in which the request rate changes linearly from start to end."""

    start_per_s: float = 0.0
    end_per_s: float = 0.0
    duration_s: float = 0.0

    @property
    def requests(self) -> float:
        """The number of requests due in this stage."""
        return (self.start_per_s + self.end_per_s) / 2 * self.duration_s


@dataclass(frozen=True, slots=True)
class Lengths:
    """The distribution from which the number of tokens of each text is drawn, by the seed. An empty
    `distribution` leaves the lengths open.
    """

    distribution: str = ""
    least: int = 0
    most: int = 0
    median: float = 0.0
    sigma: float = 0.0

    @property
    def mean(self) -> float:
        """The distribution's mean in tokens, before values above `most` are cut to it; 0 without a
        distribution.
        """
        if self.distribution == "lognormal":
            return self.median * math.exp(self.sigma**2 / 2)
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Requests of one group begin with the same text of about `tokens` tokens; 0 groups means no
    shared text.
    """

    groups: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of request in a mixture. Its share of all requests is its `weight` divided by the sum
    of all weights; the other fields are those of a workload.
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
    """One load pattern: a closed loop when `concurrency` > 0, otherwise an open loop driven by
    exactly one of `rate_per_s`, `stages` and `trace`.

    With a `search` none of the four is set: `at_load` gives the workload for one load.
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
        """Return this workload at one load of its search.

        A closed loop without a number of requests gets four waves, or two sessions per user.
        """
        if self.search.of != CONCURRENCY:
            return replace(self, rate_per_s=load)
        users = round(load)
        requests = (
            2 * users * self.turns if self.turns > 1 else max(_SEARCH_MIN_REQUESTS, 4 * users)
        )
        return replace(self, concurrency=users, requests=self.requests or requests)

    @property
    def load(self) -> float:
        """Requests in flight of a closed loop, or requests per second of an open loop with a single
        rate.
        """
        return float(self.concurrency) or self.rate_per_s

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its kinds of requests: the mixture's parts, or the workload itself as the only part."""
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
        """Whether requests may find each other's prefixes in the prefix cache."""
        return self.cache in ("flush", "shared")

    @property
    def file_refs(self) -> frozenset[str]:
        """The refs of the trial's attached files that this workload uses."""
        named = {
            part.prompts.removeprefix("file:")
            for part in self.parts
            if part.prompts.startswith("file:")
        }
        return frozenset({self.trace, *named} - {""})

    @property
    def is_open(self) -> bool:
        """Whether requests are sent when they are due, whatever the server does."""
        return (
            self.rate_per_s > 0 or bool(self.stages) or bool(self.trace) or self.search.of == RATE
        )

    @property
    def fixes_lengths(self) -> bool:
        """Whether each answer has a prescribed exact length, common to all or its own."""
        return (
            self.output_tokens > 0 or self.output.distribution != "" or bool(self.trace or self.mix)
        )

    @property
    def mean_output_tokens(self) -> float:
        """The mean output tokens of an answer, weighted over all parts."""
        weights = sum(part.weight for part in self.parts)
        return (
            sum(part.weight * (part.output_tokens or part.output.mean) for part in self.parts)
            / weights
        )
