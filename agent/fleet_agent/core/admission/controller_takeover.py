"""Owns the rule whose orders an agent obeys, from what it knows of controllers; remembers nothing
itself.

One controller at a time: its acknowledgements let the agent forget events, so a second one with
another store would lose what the first had not stored yet. And of one store only its newest start:
one that was replaced while it slept neither starts nor cancels anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.protocol_version import incompatibility, is_compatible

TAKE_OVER_AFTER_S = 3600.0  # a controller that nobody heard of for so long has no claim any more


@dataclass(frozen=True, slots=True)
class CurrentController:
    """What ties an agent to its controller of now. `owed`: in words, what it would lose; empty =
    nothing. `away_s`: since it hung up.
    """

    epoch: ControllerEpoch
    is_connected: bool = False
    unstored: str = ""
    away_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """Why an order is not obeyed, and what to do."""

    message: str
    hint: str


def check_order(
    current: CurrentController,
    presented: ControllerEpoch,
    take_over_after_s: float = TAKE_OVER_AFTER_S,
) -> OrderRefused | None:
    """None when orders under this lease are to be obeyed. A lease that is not told is from before
    leases, and obeyed.
    """
    if not presented.names_controller:
        return None
    if not is_compatible(presented.protocol):
        return OrderRefused(*incompatibility("the controller", presented.protocol, "this agent"))
    if presented.controller_id == current.epoch.controller_id:
        return (
            _refuse_replaced(current.epoch, presented)
            if presented.epoch < current.epoch.epoch
            else None
        )
    return (
        _refuse_other_controller(current, take_over_after_s)
        if current.epoch.names_controller
        else None
    )


def _refuse_other_controller(
    current: CurrentController, take_over_after_s: float
) -> OrderRefused | None:
    belongs = f"this host belongs to controller {current.epoch.controller_id[:8]}"
    if current.is_connected:
        return OrderRefused(f"{belongs}, which follows it now", "end that one first")
    if current.unstored and current.away_s < take_over_after_s:
        hint = f"let it come back and finish, or wait until it has been away for {take_over_after_s / 60:.0f} min"
        return OrderRefused(f"{belongs}, which has not stored {current.unstored} yet", hint)
    return None


def _refuse_replaced(current: ControllerEpoch, presented: ControllerEpoch) -> OrderRefused:
    message = f"this controller was replaced: start {current.epoch} of it came after this one, which is {presented.epoch}"
    return OrderRefused(
        message, "end this one: it works on a store that another one has taken over"
    )
