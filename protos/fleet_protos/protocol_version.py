"""Owns the number of the contract: what each minor added, and which peers understand each other.
Sends nothing.

The major number is the package of the messages, `fleet_protos.v1`: another one is another service.
A minor only adds. A peer one minor away, in either direction, works: what it does not know it
ignores, what it does not tell has a default that means as before.
"""

from __future__ import annotations

from collections.abc import Mapping

MINORS: Mapping[int, str] = {
    0: "one machine: trials, events, artifacts, jobs, results; tells no number",
    1: "a fleet: protocol, clock and free space in Describe, CheckHost, leases, ReleaseAttempt, drained hosts, priorities, request keys",
}
PROTOCOL = max(MINORS)
COMPATIBLE_MINORS = 1  # minors that may lie between two peers


def is_compatible(theirs: int, ours: int = PROTOCOL) -> bool:
    """True when a peer that speaks minor `theirs` works with one that speaks `ours`."""
    return abs(theirs - ours) <= COMPATIBLE_MINORS


def incompatibility(peer: str, theirs: int, us: str, ours: int = PROTOCOL) -> tuple[str, str]:
    """(what stands in the way, what to do) for two that do not; `peer` and `us` name the two sides."""
    older = peer if theirs < ours else us
    message = (
        f"{peer} speaks protocol 1.{theirs}, {us} 1.{ours}: more than {COMPATIBLE_MINORS} apart"
    )
    return message, f"update {older}"
