"""Defines what is known about one failure class."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_protos.errors import ErrorKind

# The host must be repaired before another attempt there can succeed
NEEDS_HOST_REPAIR = ErrorKind.DEPLOY_FAILED
_RETRIED = frozenset({ErrorKind.SERVER_LAUNCH, ErrorKind.SERVER_UNHEALTHY, ErrorKind.SERVER_EXITED})


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes one failure class.

    `avoid` is the tempting step that makes the failure worse or hides it. `source` says where the
    failure was seen: an issue, a file, a version range.
    """

    name: str
    kind: ErrorKind
    cause: str
    cure: str
    avoid: str
    source: str

    @property
    def retryable(self) -> bool:
        """Return whether the same trial may succeed when it is started again."""
        return self.kind in _RETRIED

    @property
    def hint(self) -> str:
        """Return cause and cure as one text."""
        return f"{self.cause} {self.cure}"
