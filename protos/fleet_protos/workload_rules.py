"""Derives from a workload's fields its kind of loop, its parts, its lengths and its files."""

from __future__ import annotations

import math
from dataclasses import replace

from fleet_protos.search_rules import CONCURRENCY, RATE
from fleet_protos.v1.trial_values import Lengths, Part, Stage, Workload

_SEARCH_MIN_REQUESTS = 10  # requests in a run at the low loads of a search


def at_load(workload: Workload, load: float) -> Workload:
    """Return the workload at one load of its search.

    A closed loop without a number of requests gets four requests per user (at least ten in all), or
    two sessions per user if it has sessions.
    """
    if workload.search.of != CONCURRENCY:
        return replace(workload, rate_per_s=load)
    users, turns = round(load), workload.turns
    requests = 2 * users * turns if turns > 1 else max(_SEARCH_MIN_REQUESTS, 4 * users)
    return replace(workload, concurrency=users, requests=workload.requests or requests)


def load_of(workload: Workload) -> float:
    """Return the load of a workload: the requests in flight of a closed loop, or the requests per
    second of an open loop with a single rate.
    """
    return float(workload.concurrency) or workload.rate_per_s


def is_open_loop(workload: Workload) -> bool:
    """Return whether requests are sent when they are due, whatever the server does."""
    return (
        workload.rate_per_s > 0
        or bool(workload.stages)
        or bool(workload.trace)
        or workload.search.of == RATE
    )


def parts_of(workload: Workload) -> tuple[Part, ...]:
    """Return the kinds of requests of a workload: the parts of its mixture, or the workload itself
    as the only part.
    """
    own = Part(
        1.0,
        workload.prompts,
        workload.output_tokens,
        workload.output,
        workload.input_tokens,
        workload.input,
        workload.prefix,
    )
    return workload.mix or (own,)


def file_refs(workload: Workload) -> frozenset[str]:
    """Return the refs of the attached files that the workload uses."""
    named = {
        part.prompts.removeprefix("file:")
        for part in parts_of(workload)
        if part.prompts.startswith("file:")
    }
    return frozenset({workload.trace, *named} - {""})


def shares_cache(workload: Workload) -> bool:
    """Return whether a request may find the prefixes of other requests in the prefix cache."""
    return workload.cache in ("flush", "shared")


def fixes_lengths(workload: Workload) -> bool:
    """Return whether the exact length of each answer is prescribed."""
    return (
        workload.output_tokens > 0
        or workload.output.distribution != ""
        or bool(workload.trace or workload.mix)
    )


def mean_output_tokens(workload: Workload) -> float:
    """Return the mean output tokens of an answer, weighted over all parts."""
    parts = parts_of(workload)
    tokens = sum(part.weight * (part.output_tokens or mean_length(part.output)) for part in parts)
    return tokens / sum(part.weight for part in parts)


def mean_length(lengths: Lengths) -> float:
    """Return the mean of a distribution in tokens, before values above `most` are cut to `most`.
    Return 0 without a distribution.
    """
    if lengths.distribution == "lognormal":
        return lengths.median * math.exp(lengths.sigma**2 / 2)
    return (lengths.least + lengths.most) / 2


def requests_due(stage: Stage) -> float:
    """Return the number of requests that are due in a stage."""
    return (stage.start_per_s + stage.end_per_s) / 2 * stage.duration_s
