"""Decides which controller's orders an agent obeys.

An agent obeys one controller at a time. The controller's acknowledgements let the agent delete
events. A second controller with another store would therefore lose the events that the first has
not stored yet. If several controllers were started on one store, the agent obeys only the newest. A
controller that was replaced while it was suspended can neither start nor cancel anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_protos.controller_epoch import ControllerEpoch, names_controller
from fleet_protos.protocol_version import incompatibility, is_compatible

TAKE_OVER_AFTER_S = 3600.0  # after so long without a connection, another controller may take over


@dataclass(frozen=True, slots=True)
class CurrentController:
    """Describes the controller that an agent obeys.

    `epoch` is the newest epoch that the agent has obeyed. `unstored` says in words what the
    controller has not stored yet; it is empty if everything is stored. `away_s` is the time in
    seconds since the controller disconnected.
    """

    epoch: ControllerEpoch
    is_connected: bool = False
    unstored: str = ""
    away_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """Says why an order is refused, and what to do about it."""

    message: str
    hint: str


def check_order(
    current: CurrentController,
    presented: ControllerEpoch,
    take_over_after_s: float = TAKE_OVER_AFTER_S,
) -> OrderRefused | None:
    """Return why the agent refuses orders with the epoch `presented`. Return None if it obeys them.

    Orders without an epoch are obeyed: they come from an older version, which sends no epoch.
    """
    if not names_controller(presented):
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
        if names_controller(current.epoch)
        else None
    )


def _refuse_other_controller(
    current: CurrentController, take_over_after_s: float
) -> OrderRefused | None:
    belongs = f"this host belongs to controller {current.epoch.controller_id[:8]}"
    if current.is_connected:
        return OrderRefused(f"{belongs}, which is connected", "stop that controller first")
    if current.unstored and current.away_s < take_over_after_s:
        hint = (
            "start that controller again and let it finish, or wait until it has been away for "
            f"{take_over_after_s / 60:.0f} min"
        )
        return OrderRefused(f"{belongs}, which has not stored {current.unstored} yet", hint)
    return None


def _refuse_replaced(current: ControllerEpoch, presented: ControllerEpoch) -> OrderRefused:
    message = (
        f"this controller was replaced: it has epoch {presented.epoch}, and a controller with "
        f"epoch {current.epoch} has been started on the same store"
    )
    return OrderRefused(
        message, "stop this controller: a newer controller has taken over its store"
    )
