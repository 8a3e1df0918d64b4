"""Defines the version of the contract: what each minor version added, and which are compatible.

The major version is part of the package of the messages, `fleet_protos.v1`; another major version
is another service. A minor version only adds fields and RPCs. Peers that are one minor version
apart work together in both directions: a peer ignores what it does not know, and an absent field
means the earlier behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping

MINORS: Mapping[int, str] = {
    0: "one machine: trials, events, artifacts, jobs and results; peers send no version number",
    1: "a fleet: Describe returns protocol, clock and free space; adds CheckHost, ReleaseAttempt, "
    "leases, drained hosts, priorities and request keys",
}
PROTOCOL = max(MINORS)
COMPATIBLE_MINORS = 1  # largest difference between the minors of two peers


def is_compatible(theirs: int, ours: int = PROTOCOL) -> bool:
    """Return whether a peer with the minor version `theirs` works with a peer with `ours`."""
    return abs(theirs - ours) <= COMPATIBLE_MINORS


def incompatibility(peer: str, theirs: int, us: str, ours: int = PROTOCOL) -> tuple[str, str]:
    """Return (message, hint) about two incompatible peers. `peer` and `us` name the two sides."""
    older = peer if theirs < ours else us
    message = (
        f"{peer} speaks protocol 1.{theirs}, {us} 1.{ours}: more than {COMPATIBLE_MINORS} apart"
    )
    return message, f"update {older}"
