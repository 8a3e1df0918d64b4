"""Limits the size of events. Without limits, a server's output could fill the journal or exceed the
message limit of gRPC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from fleet_protos import events as ev

LARGEST_EVENT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Limits:
    text: int
    entries: int
    depth: int


_STEPS = (
    _Limits(64 << 10, 5000, 12),
    _Limits(4096, 500, 8),
    _Limits(256, 100, 4),
    _Limits(64, 20, 3),
)


# Limited where they are made, and needed complete
_EXEMPT = (ev.TrialAccepted, ev.ServerLaunching, ev.ServerLaunched, ev.RunFinished)


def limit_event_size(body: ev.Body) -> ev.Body:
    """Return the event's body. Texts, lists and mappings in it are cut as far as needed to make it
    fit into about `LARGEST_EVENT_BYTES`.

    In a proof, infinite numbers and NaN become text, because JSON cannot hold them.
    """
    if isinstance(body, _EXEMPT):
        return body
    if isinstance(body, ev.ConfigurationProved):
        body = replace(
            body,
            effective_args=_replace_non_finite(body.effective_args),
            nccl=_replace_non_finite(body.nccl),
        )
    cut: ev.Body = body
    for limits in _STEPS:
        cut = _cut(body, limits, 0)
        if _size(cut) <= LARGEST_EVENT_BYTES:
            break
    return cut


def _cut(value: Any, limits: _Limits, depth: int) -> Any:
    if isinstance(value, str):
        return (
            value
            if len(value) <= limits.text
            else f"{value[: limits.text]}… ({len(value)} characters)"
        )
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{item.name: _cut(getattr(value, item.name), limits, depth) for item in fields(value)},
        )
    if isinstance(value, Mapping):
        return _cut_mapping(value, limits, depth)
    if isinstance(value, list | tuple):
        return type(value)(_entry(entry, limits, depth + 1) for entry in value[: limits.entries])
    return value


def _cut_mapping(value: Mapping[Any, Any], limits: _Limits, depth: int) -> dict[str, Any]:
    pairs = list(value.items())[: limits.entries]
    return {_cut(str(key), limits, depth): _entry(entry, limits, depth + 1) for key, entry in pairs}


def _entry(entry: Any, limits: _Limits, depth: int) -> Any:
    if depth > limits.depth and isinstance(entry, Mapping | list | tuple):
        return "… (nested)"
    return _cut(entry, limits, depth)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _size(value: Any) -> int:
    """Estimate the size of the value as JSON, in bytes."""
    if isinstance(value, str):
        return 3 + len(value.encode(errors="surrogatepass"))
    if is_dataclass(value) and not isinstance(value, type):
        return 2 + sum(
            len(item.name) + 4 + _size(getattr(value, item.name)) for item in fields(value)
        )
    if isinstance(value, Mapping):
        return 2 + sum(_size(str(key)) + 1 + _size(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return 2 + sum(1 + _size(entry) for entry in value)
    return 8
