"""Splits the time of a speculation cycle into drafting and verifying. The times come from the
device-timer counters of /metrics.

The counters need --enable-metrics and SGLANG_ENABLE_METRICS_DEVICE_TIMER=1. They are called
`gpu_execution_seconds_total` in 0.5.7 - 0.5.10 and `forward_execution_seconds_total` from 0.5.11
on. Their label `category` says what the time was spent on. Up to 0.5.10 the category describes the
whole batch, so a split is impossible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_knowledge.sglang_metrics.prometheus_text import MetricSample, per_label, read_samples

TIME_COUNTERS = ("sglang:forward_execution_seconds_total", "sglang:gpu_execution_seconds_total")
# counts batches of any size, by `mode`
BATCH_COUNTER = "sglang:cuda_graph_passes_total"
DEVICE_TIMER_ENV = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}
_VERIFY = frozenset({"target_verify"})
# With speculation `decode` is the draft's own pass: the target only verifies
# (runner/eager_runner.py 0.5.15 - 0.5.23).
_DRAFT = frozenset({"eagle_draft", "frozen_kv_draft", "decode"})
_EXTEND = frozenset({"eagle_draft_extend", "draft_extend", "draft_extend_v2"})


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Holds the GPU seconds of each category and the number of decode batches since the server's
    start.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    decode_batches: float | None = None

    @classmethod
    def from_metrics(cls, text: str) -> DeviceTimes:
        """Read the times from the text of /metrics. The result is empty if the text lacks the
        counters.
        """
        return cls.from_samples(read_samples(text))

    @classmethod
    def from_samples(cls, samples: tuple[MetricSample, ...]) -> DeviceTimes:
        """Read the times from parsed samples of /metrics."""
        seconds = next(
            (found for name in TIME_COUNTERS if (found := per_label(samples, name, "category"))), {}
        )
        batches = [
            value
            for mode, value in per_label(samples, BATCH_COUNTER, "mode").items()
            if mode.startswith("decode")
        ]
        plain = {category.removeprefix("forward_"): value for category, value in seconds.items()}
        return cls(plain, sum(batches) if batches else None)


@dataclass(frozen=True, slots=True)
class SpeculationCycle:
    """Holds the mean GPU seconds of one speculation cycle of a batch: for drafting, for extending
    the draft and for verifying.
    """

    draft_s: float
    extend_s: float
    verify_s: float
    cycles: int

    @property
    def verify_share(self) -> float:
        """Return the share of verifying in the GPU time of the cycle."""
        whole = self.draft_s + self.extend_s + self.verify_s
        return self.verify_s / whole if whole else 0.0


def mean_cycle(
    before: DeviceTimes, after: DeviceTimes, cycles: float | None = None
) -> SpeculationCycle | None:
    """Return the mean cycle between two moments.

    `cycles` is the number of verify steps. It is used for a server without a batch counter that ran
    one request at a time. Return None if the counters are missing, if they do not show the time of
    verifying, if a counter fell because the server restarted, or if the number of cycles is
    unknown.
    """
    grown = {
        category: value - before.seconds.get(category, 0.0)
        for category, value in after.seconds.items()
    }
    if any(value < 0 for value in grown.values()) or not set(before.seconds) <= set(after.seconds):
        return None
    batches = _batches(before, after) or cycles
    verify = _sum(grown, _VERIFY)
    if not batches or batches <= 0 or not verify:
        return None
    return SpeculationCycle(
        _sum(grown, _DRAFT) / batches,
        _sum(grown, _EXTEND) / batches,
        verify / batches,
        round(batches),
    )


def _batches(before: DeviceTimes, after: DeviceTimes) -> float | None:
    return (
        None
        if after.decode_batches is None
        else after.decode_batches - (before.decode_batches or 0.0)
    )


def _sum(seconds: Mapping[str, float], categories: frozenset[str]) -> float:
    return sum(value for category, value in seconds.items() if category in categories)
