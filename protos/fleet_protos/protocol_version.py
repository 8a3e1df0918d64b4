"""The version of the contract: what each minor added, and which peers are compatible.

The major number is the package of the messages, `fleet_protos.v1`; another major is another
service. A minor only adds fields and RPCs. Peers one minor apart work together in both directions:
each ignores what it does not know, and an absent field defaults to the earlier behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping

MINORS: Mapping[int, str] = {
    0: "one machine: trials, events, artifacts, jobs, results; sends no version number",
    1: "a fleet: protocol, clock and free space in Describe, CheckHost, leases, ReleaseAttempt, "
    "drained hosts, priorities, request keys",
}
PROTOCOL = max(MINORS)
COMPATIBLE_MINORS = 1  # largest difference between the minors of two peers


def is_compatible(theirs: int, ours: int = PROTOCOL) -> bool:
    """Return whether a peer that speaks minor `theirs` works with one that speaks `ours`."""
    return abs(theirs - ours) <= COMPATIBLE_MINORS


def incompatibility(peer: str, theirs: int, us: str, ours: int = PROTOCOL) -> tuple[str, str]:
    """Return (message, hint) for two incompatible peers; `peer` and `us` name the two sides."""
    older = peer if theirs < ours else us
    message = (
        f"{peer} speaks protocol 1.{theirs}, {us} 1.{ours}: more than {COMPATIBLE_MINORS} apart"
    )
    return message, f"update {older}"
