"""Owns the form of one class of failure. Holds none."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_protos.errors import ErrorKind

# The host must be repaired: no use in trying again there
NEEDS_HOST_REPAIR = ErrorKind.DEPLOY_FAILED
_RETRIED = frozenset({ErrorKind.SERVER_LAUNCH, ErrorKind.SERVER_UNHEALTHY, ErrorKind.SERVER_EXITED})


@dataclass(frozen=True, slots=True)
class Failure:
    """One class. `avoid` is the tempting step that makes it worse or hides it; `source` where the
    class was seen.
    """

    name: str
    kind: ErrorKind
    cause: str
    cure: str
    avoid: str
    source: str

    @property
    def retryable(self) -> bool:
        """Whether the same trial may end otherwise when it is started again."""
        return self.kind in _RETRIED

    @property
    def hint(self) -> str:
        """Cause and cure in one text for a person."""
        return f"{self.cause} {self.cure}"
