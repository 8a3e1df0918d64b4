"""Writes the messages about an agent whose version or clock does not fit this controller."""

from __future__ import annotations

from fleet_protos.protocol_version import PROTOCOL, incompatibility, is_compatible

CLOCK_APART_S = 2.0


def agent_incompatibility(
    host: str, version: str, protocol: int, ours: int = PROTOCOL
) -> tuple[str, str]:
    """Return why the controller cannot work with this agent, and a hint. Both texts are empty if
    the controller can work with it.
    """
    if is_compatible(protocol, ours):
        return "", ""
    message, _ = incompatibility(
        f"the agent of {host} (version {version or 'unknown'})", protocol, "this controller", ours
    )
    return (
        message,
        f"fleetctl deploy {host}"
        if protocol < ours
        else "update benchfleet on this machine to the version of the agents",
    )


def clock_warning(ahead_s: float) -> str:
    """Return a warning if a host's clock differs from the controller's clock by more than 2 s.
    Return an empty text otherwise.

    `ahead_s` is negative if the host's clock is behind.
    """
    if abs(ahead_s) <= CLOCK_APART_S:
        return ""
    difference, side = _span(abs(ahead_s)), "ahead" if ahead_s > 0 else "behind"
    return (
        f"its clock is {difference} {side}: the times in its logs differ from the controller's "
        "times, but no result depends on them"
    )


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"
