"""Owns the rule whose orders an agent obeys, from what it knows of controllers; remembers nothing itself.

One controller at a time: its acknowledgements let the agent forget events, so a second one with another store would lose what the first had
not stored yet. And of one store only its newest start: one that was replaced while it slept neither starts nor cancels anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_protos.controller_epoch import Lease
from fleet_protos.protocol_version import refusal, understands

TAKE_OVER_AFTER_S = 3600.0  # a controller that nobody heard of for so long has no claim any more


@dataclass(frozen=True, slots=True)
class Situation:
    """What ties an agent to its controller of now. `owed`: in words, what it would lose; empty = nothing. `away_s`: since it hung up."""

    held: Lease
    follows: bool = False
    owed: str = ""
    away_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an order is not obeyed, and what to do."""

    message: str
    hint: str


def judge(now: Situation, shown: Lease, take_over_after_s: float = TAKE_OVER_AFTER_S) -> Refused | None:
    """None when orders under this lease are to be obeyed. A lease that is not told is from before leases, and obeyed."""
    if not shown.is_told:
        return None
    if not understands(shown.protocol):
        return Refused(*refusal("the controller", shown.protocol, "this agent"))
    if shown.controller_id == now.held.controller_id:
        return _replaced(now.held, shown) if shown.epoch < now.held.epoch else None
    return _claimed(now, take_over_after_s) if now.held.is_told else None


def _claimed(now: Situation, take_over_after_s: float) -> Refused | None:
    belongs = f"this host belongs to controller {now.held.controller_id[:8]}"
    if now.follows:
        return Refused(f"{belongs}, which follows it now", "end that one first")
    if now.owed and now.away_s < take_over_after_s:
        hint = f"let it come back and finish, or wait until it has been away for {take_over_after_s / 60:.0f} min"
        return Refused(f"{belongs}, which has not stored {now.owed} yet", hint)
    return None


def _replaced(held: Lease, shown: Lease) -> Refused:
    told = f"this controller was replaced: start {held.epoch} of it came after this one, which is {shown.epoch}"
    return Refused(told, "end this one: it works on a store that another one has taken over")
