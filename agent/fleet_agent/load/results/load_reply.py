"""Defines the reply that carries the results of one run from the load process to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """Identifies the file with the raw data of a run. The path is empty if no file was
    requested.
    """

    path: str = ""
    sha256: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadReply:
    """Holds the results of one run. `metrics` and `duration_s` are in model time. See
    `fleet_protos.metric_names` and docs/metrics.md.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # the fields of core.run_facts.RunFacts
    # error kind, with its status for http_status → the server's words for the first such request
    error_examples: Mapping[str, str] = field(default_factory=dict)
    requests_ok: int = 0
    requests_failed: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0
    started_unix_ns: int = 0
    cache_flushed: bool = False
    parquet: ParquetFile = field(default_factory=ParquetFile)
