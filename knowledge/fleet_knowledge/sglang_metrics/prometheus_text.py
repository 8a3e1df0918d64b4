"""Parses the /metrics text of any SGLang version, and combines the series that form one figure.

SGLang added labels over time: `name` (2024), `model_name`, then `engine_type`, `tp_rank`,
`pp_rank`, `moe_ep_rank` and `dp_rank`. No label is required.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*,?')
_VALUE = re.compile(
    r"[ \t]*([+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[iI]nf|NaN|nan))"
    r"(?=[ \t\r]|$)"
)
_ESCAPE = re.compile(r"\\(.)")
# Ranks that report the same value again (0.5.9 scheduler_metrics_mixin.py,
# --enable-metrics-for-all-schedulers). `dp_rank` does not belong here.
REPLICATING_LABELS = (
    "tp_rank",
    "pp_rank",
    "moe_ep_rank",
    "ep_rank",
    "attn_tp_rank",
    "attn_cp_rank",
    "pid",
)
PREFIX = "sglang:"


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Holds one series. `name` has SGLang's colon, even if an exporter replaced it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = math.nan


def read_samples(text: str) -> tuple[MetricSample, ...]:
    """Return every sample in order and skip other lines. Never raises."""
    return tuple(sample for line in text.split("\n") if (sample := _sample(line.strip())))


def is_complete(text: str) -> bool:
    """Return whether the text ends in a line feed, as the format requires.

    Otherwise the answer was cut off, perhaps inside the last value.
    """
    return text.endswith("\n")


def _sample(line: str) -> MetricSample | None:
    found = _LINE.match(line)
    if not found:
        return None
    labels, at = _labels(line, found.end())
    value = _VALUE.match(line, at) if at >= 0 else None
    return MetricSample(canonical_metric_name(found[1]), labels, float(value[1])) if value else None


def _labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """Return (labels, offset of the value) for labels that begin at offset `at`. The offset is -1
    if the labels do not end.
    """
    if not line.startswith("{", at):
        return {}, at
    labels, at = {}, at + 1
    while found := _LABEL.match(line, at):
        labels[found[1]] = _ESCAPE.sub(
            lambda escaped: "\n" if escaped[1] == "n" else escaped[1], found[2]
        )
        at = found.end()
    close = re.compile(r"[ \t]*\}").match(line, at)
    return labels, close.end() if close else -1


def canonical_metric_name(name: str) -> str:
    """Return the name with SGLang's colon. Some exporters write `sglang_gen_throughput` instead."""
    return PREFIX + name.removeprefix("sglang_") if name.startswith("sglang_") else name


def total(
    samples: Iterable[MetricSample], name: str, where: Mapping[str, str] | None = None
) -> float | None:
    """Return the sum of a metric over the server, or None if no series has a number.

    Ranks that hold copies report the same series; it is counted once. The series of data-parallel
    ranks, of `is_streaming` and of categories are added up.
    """
    figures = _distinct_series(samples, name, where or {})
    return math.fsum(figures.values()) if figures else None


def mean(samples: Iterable[MetricSample], name: str) -> float | None:
    """Return the mean of a metric over the data-parallel ranks, or None if no series has a number.

    It is meant for shares and lengths, which cannot be added up.
    """
    figures = _distinct_series(samples, name, {})
    return math.fsum(figures.values()) / len(figures) if figures else None


def per_label(samples: Iterable[MetricSample], name: str, label: str) -> dict[str, float]:
    """Return the value of a metric for each value of `label`, such as `dp_rank` or `category`."""
    found: dict[str, float] = {}
    for key, value in _distinct_series(samples, name, {}).items():
        if label in (labels := dict(key)):
            found[labels[label]] = found.get(labels[label], 0.0) + value
    return found


def _distinct_series(
    samples: Iterable[MetricSample], name: str, where: Mapping[str, str]
) -> dict[tuple[tuple[str, str], ...], float]:
    """Return one number for each set of labels, ignoring the labels of replicating ranks.

    If several ranks report copies of a series, the largest value is taken: counters only grow, so
    it is the newest. All series of a server have the same label names. If a text has series with
    different label names, only the series with the most names are used.
    """
    figures: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        if (
            sample.name != canonical_metric_name(name)
            or not math.isfinite(sample.value)
            or not where.items() <= sample.labels.items()
        ):
            continue
        key = tuple(
            sorted(
                (label, value)
                for label, value in sample.labels.items()
                if label not in REPLICATING_LABELS
            )
        )
        figures[key] = max(figures.get(key, -math.inf), sample.value)
    most = max(map(len, figures), default=0)
    return {key: value for key, value in figures.items() if len(key) == most}


def is_sglang(samples: Sequence[MetricSample]) -> bool:
    """Return whether any series is from SGLang."""
    return any(sample.name.startswith(PREFIX) for sample in samples)
