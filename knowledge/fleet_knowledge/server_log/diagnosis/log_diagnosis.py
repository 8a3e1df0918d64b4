"""Defines the diagnosis of a log: what `fleetctl diagnose` prints and the agent acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.failure_classes import FAILURES
from fleet_protos.errors import ErrorKind

STARTING, IS_READY, BUSY, IS_SERVING, FAILED, STOPPED, UNKNOWN = (
    "starting",
    "ready",
    "busy",
    "serving",
    "failed",
    "stopped",
    "unknown",
)
VERSION = 1


@dataclass(frozen=True, slots=True)
class LogWarning:
    """Holds one warning and the number of lines that caused it."""

    code: str
    message: str
    hint: str
    severity: str = "warning"
    reason: str = ""
    count: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the warning in the form of `docs/json.md`."""
        reason = {"reason": self.reason} if self.reason else {}
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint,
            "count": self.count,
            **reason,
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Holds the diagnosis of one log. A text or mapping is empty if the log does not show
    the fact.
    """

    state: str = UNKNOWN
    failure_class: str = ""
    cause_line: str = ""
    rank: str = ""
    phase: str = ""
    hint: str = ""
    avoid: str = ""
    stamp: str = ""
    distance: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    ready_at: str = ""
    ready_s: float | None = None
    progress: tuple[int, int] = (0, 0)
    weight_shards: tuple[int, int] = (0, 0)
    launches: int = 0
    server: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[LogWarning] = ()
    decode: Mapping[str, Any] = field(default_factory=dict)
    nccl: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> ErrorKind:
        """Return the error kind, which says what to do about the failure. Return NONE if nothing
        failed.
        """
        failure = FAILURES.get(self.failure_class)
        return (
            failure.kind
            if failure
            else ErrorKind.SERVER_EXITED
            if self.state == FAILED
            else ErrorKind.NONE
        )

    @property
    def retryable(self) -> bool | None:
        """Return whether another attempt may succeed; None if nothing failed."""
        failure = FAILURES.get(self.failure_class)
        return failure.retryable if failure else None

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis in the form of `docs/json.md`. A value is null if the log does not
        show it.
        """
        return {
            "version": VERSION,
            "state": self.state,
            "failure_class": self.failure_class or None,
            "error_kind": self.kind.name.lower() if self.failure_class else None,
            "retryable": self.retryable,
            "cause_line": self.cause_line or None,
            "rank": self.rank or None,
            "phase": self.phase or None,
            "hint": self.hint or None,
            "avoid": self.avoid or None,
            "at": self.stamp or None,
            "details": dict(self.details),
            "phases_s": dict(self.phases_s),
            "ready_at": self.ready_at or None,
            "ready_s": self.ready_s,
            "progress": _counted(self.progress),
            "weight_shards": _counted(self.weight_shards),
            "launches": self.launches,
            "server": dict(self.server),
            "warnings": [warned.to_json() for warned in self.warnings],
            "decode": dict(self.decode),
            "nccl": dict(self.nccl),
            "versions": dict(self.versions),
        }


def _counted(pair: tuple[int, int]) -> dict[str, int] | None:
    return {"done": pair[0], "total": pair[1]} if pair[1] else None
