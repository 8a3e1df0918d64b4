"""Owns the reading of SGLang's /metrics text, of any version, and which of its series are one
figure; asks no server.

Labels came in turn: `name` (2024), `model_name`, then `engine_type`, `tp_rank`, `pp_rank`,
`moe_ep_rank` and `dp_rank`. None is required.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*,?')
_VALUE = re.compile(
    r"[ \t]*([+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[iI]nf|NaN|nan))(?=[ \t\r]|$)"
)
_ESCAPE = re.compile(r"\\(.)")
# Ranks that hold the same figure again (0.5.9 scheduler_metrics_mixin.py,
# --enable-metrics-for-all-schedulers); `dp_rank` is none.
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
    """One series as it stands; `name` has the colon that SGLang writes, also where an exporter
    rewrote it.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = math.nan


def read_samples(text: str) -> tuple[MetricSample, ...]:
    """Every line that is a sample, in order; anything else is passed over. Never raises, whatever
    the text.
    """
    return tuple(sample for line in text.split("\n") if (sample := _sample(line.strip())))


def is_complete(text: str) -> bool:
    """False for an answer that was cut off: the format ends in a line feed, so the last value may
    have lost its end.
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
    """The labels from `at` on and where the value begins; -1 where they do not end."""
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
    """`sglang_gen_throughput`, as some exporters write it, is `sglang:gen_throughput`."""
    return PREFIX + name.removeprefix("sglang_") if name.startswith("sglang_") else name


def total(
    samples: Iterable[MetricSample], name: str, where: Mapping[str, str] | None = None
) -> float | None:
    """The server's figure: repeating ranks counted once, everything else summed (data-parallel
    ranks, `is_streaming`, categories).

    None when no series has a number.
    """
    figures = _distinct_series(samples, name, where or {})
    return math.fsum(figures.values()) if figures else None


def mean(samples: Iterable[MetricSample], name: str) -> float | None:
    """A share or a length of the server, which data-parallel ranks do not add up to: the mean over
    them; None without a number.
    """
    figures = _distinct_series(samples, name, {})
    return math.fsum(figures.values()) / len(figures) if figures else None


def per_label(samples: Iterable[MetricSample], name: str, label: str) -> dict[str, float]:
    """The figure by each value of `label`, such as `dp_rank` or `category`; without series that
    lack it.
    """
    found: dict[str, float] = {}
    for key, value in _distinct_series(samples, name, {}).items():
        if label in (labels := dict(key)):
            found[labels[label]] = found.get(labels[label], 0.0) + value
    return found


def _distinct_series(
    samples: Iterable[MetricSample], name: str, where: Mapping[str, str]
) -> dict[tuple[tuple[str, str], ...], float]:
    """One number for each set of labels without the repeating ranks: the largest, which is the
    newest of a counter's copies.

    One server writes one set of label names, so where several generations are in a text, that with
    the most names counts.
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
    """True when any series is SGLang's."""
    return any(sample.name.startswith(PREFIX) for sample in samples)
