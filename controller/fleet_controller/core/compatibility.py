"""Owns what is told of a host that answers, from what its agent says: whether it is understood,
whether its clock is right. Asks nobody.
"""

from __future__ import annotations

from fleet_protos.protocol_version import PROTOCOL, incompatibility, is_compatible

CLOCK_APART_S = 2.0


def agent_incompatibility(
    host: str, version: str, protocol: int, ours: int = PROTOCOL
) -> tuple[str, str]:
    """(why the controller does not work with this agent, what to do); both empty when it does."""
    if is_compatible(protocol, ours):
        return "", ""
    message, _ = incompatibility(
        f"the agent of {host} (version {version or 'unknown'})", protocol, "this controller", ours
    )
    return (
        message,
        f"fleetctl deploy {host}"
        if protocol < ours
        else "update benchfleet here, to the version of its agents",
    )


def clock_warning(ahead_s: float) -> str:
    """What `hosts` says of a clock that is too far from ours; no result depends on it."""
    if abs(ahead_s) <= CLOCK_APART_S:
        return ""
    return f"its clock is {_span(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}: its logs show other times, no result depends on it"


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"
