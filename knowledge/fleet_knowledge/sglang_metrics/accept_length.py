"""Computes the accept length of a time window from counters, requests, log lines or cumulative
averages.

The counters are `sglang:generation_tokens_total` and `sglang:spec_verify_calls_total` (0.5.13 -
0.5.23). Both count a request when it finishes, so a window must end after its last request.
Averages and gauges change every `--decode-log-interval` (40) steps. /flush_cache resets the
average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet_knowledge.sglang_metrics.prometheus_text import (
    canonical_metric_name,
    read_samples,
    total,
)

GENERATED = "sglang:generation_tokens_total"
VERIFIED = "sglang:spec_verify_calls_total"
MIN_ACCEPT_LENGTH = 1.0  # each verify step gives its bonus token
_SURELY_WRONG = 0.9  # tokens per step; below 1, since a discarded last step may be counted
_ROUNDING = 0.005  # an average printed with two digits


@dataclass(frozen=True, slots=True)
class AcceptLength:
    """Holds the accept length of a time window. `length` is None if it was not measured.

    `source` says where the length comes from. `reason` says why it was not measured, or adds a
    remark.
    """

    length: float | None = None
    verify_count: int | None = None
    source: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """Return the length as a text for people, or `not measured`."""
        return "not measured" if self.length is None else f"{self.length:.3g}"


@dataclass(frozen=True, slots=True)
class SpeculationCounters:
    """Holds the counters of a server at one moment. A counter is None if the server does not have
    it.
    """

    generated: float | None = None
    verified: float | None = None

    @classmethod
    def from_metrics(cls, text: str) -> SpeculationCounters:
        """Read the counters from the text of /metrics."""
        samples = read_samples(text)
        return cls(total(samples, GENERATED), total(samples, VERIFIED))

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> SpeculationCounters:
        """Read the counters from a map of metric names to values."""
        named = {
            canonical_metric_name(name): finite_number(value) for name, value in values.items()
        }
        return cls(named.get(GENERATED), named.get(VERIFIED))


def finite_number(value: object) -> float | None:
    """Return the value as a float if it is a finite number and not a bool, else None."""
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def accept_length_from_counters(
    before: SpeculationCounters, after: SpeculationCounters
) -> AcceptLength:
    """Return the accept length between two moments: generated tokens divided by verify steps.

    A counter that fell means that the server restarted. Then no length is returned, only the
    reason.
    """
    if before.verified is None or after.verified is None:
        return AcceptLength(
            reason=(
                "the server has no counter of verify steps (before 0.5.13, or without "
                "--enable-metrics)"
            )
        )
    if before.generated is None or after.generated is None:
        return AcceptLength(reason="the server has no counter of generated tokens")
    if after.verified < before.verified or after.generated < before.generated:
        return AcceptLength(reason="a counter fell: the server restarted in the window")
    return _ratio(after.generated - before.generated, after.verified - before.verified, "counters")


def accept_length_from_requests(
    requests: Iterable[tuple[float | None, float | None]],
) -> AcceptLength:
    """Return the accept length of requests. Each request is given as (completion tokens, verify
    steps).

    `meta_info` has both numbers in every version. Requests that lack a number are left out.
    """
    counted = [(tokens, steps) for tokens, steps in requests if tokens is not None and steps]
    return _ratio(
        math.fsum(tokens for tokens, _ in counted),
        math.fsum(steps for _, steps in counted),
        "requests",
    )


def accept_length_from_log(lines: Iterable[tuple[float | None, float | None]]) -> AcceptLength:
    """Return the accept length of decode lines. Each line is given as (accept length, verify steps
    that the line covers).

    The mean is weighted by the verify steps, which are interval × running requests.
    """
    weighted = [
        (length, weight)
        for length, weight in lines
        if length is not None and length >= MIN_ACCEPT_LENGTH and weight and weight > 0
    ]
    weight = math.fsum(part for _, part in weighted)
    if not weight:
        return AcceptLength(
            reason="no decode line in the window: the server writes one every 40 steps"
        )
    return AcceptLength(math.fsum(length * part for length, part in weighted) / weight, None, "log")


def accept_length_from_average(average: float | None) -> AcceptLength:
    """Return the accept length from a server's average since its start or last flush.

    A server reports 0 before it has averaged anything. Then no length is returned, only the reason.
    """
    value = finite_number(average)
    if value is None or value < MIN_ACCEPT_LENGTH - _ROUNDING:
        return AcceptLength(
            reason="the server has not averaged anything yet: it averages every 40 decode steps"
        )
    return AcceptLength(value, None, "server average")


def accept_length_of_last_run(
    before: float | None, verified_before: float, after: float | None, verified_in_run: float
) -> AcceptLength:
    """Return the accept length of the last run alone.

    The result follows from the server's averages before and after the run, and from the verify
    steps before and during the run. A result below 1 means that the average was reset between the
    runs (/flush_cache). Then the later average belongs to the last run alone.
    """
    last, first = accept_length_from_average(after), accept_length_from_average(before)
    if last.length is None or verified_in_run <= 0:
        return AcceptLength(reason=last.reason or "no verify step in the run")
    if first.length is None or verified_before <= 0:
        return AcceptLength(last.length, int(verified_in_run), "averages")
    alone = (
        last.length * (verified_before + verified_in_run) - first.length * verified_before
    ) / verified_in_run
    if alone < MIN_ACCEPT_LENGTH - _ROUNDING:
        return AcceptLength(
            last.length,
            int(verified_in_run),
            "server average",
            "the average was reset between the runs",
        )
    return AcceptLength(alone, int(verified_in_run), "averages")


def first_measured(*found: AcceptLength) -> AcceptLength:
    """Return the first accept length that was measured. If none was measured, return the first,
    which has the reason.
    """
    return next(
        (one for one in found if one.length is not None), found[0] if found else AcceptLength()
    )


def _ratio(tokens: float, steps: float, source: str) -> AcceptLength:
    if steps <= 0:
        return AcceptLength(
            reason="no verify step in the window: no speculation, or no request ended"
        )
    if tokens < steps * _SURELY_WRONG:
        return AcceptLength(
            reason=(
                f"{tokens:g} tokens cannot come from {steps:g} verify steps: the counts are from "
                f"two windows"
            )
        )
    return AcceptLength(tokens / steps, round(steps), source)
