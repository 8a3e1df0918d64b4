"""Decides which controller's orders an agent obeys.

An agent obeys one controller at a time. The controller's acknowledgements let the agent delete
events, so a second controller with another store would lose what the first has not stored yet. Of
the controllers on one store, the agent obeys only the newest start: one that was replaced while it
was suspended can neither start nor cancel anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_protos.controller_epoch import ControllerEpoch, names_controller
from fleet_protos.protocol_version import incompatibility, is_compatible

TAKE_OVER_AFTER_S = 3600.0  # after so long without a connection, another controller may take over


@dataclass(frozen=True, slots=True)
class CurrentController:
    """What ties an agent to its current controller.

    `epoch` is the newest that the agent obeyed, `unstored` says in words what the controller has
    not stored yet (empty if nothing), and `away_s` is in seconds since it disconnected.
    """

    epoch: ControllerEpoch
    is_connected: bool = False
    unstored: str = ""
    away_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """Why an order is refused, and what to do."""

    message: str
    hint: str


def check_order(
    current: CurrentController,
    presented: ControllerEpoch,
    take_over_after_s: float = TAKE_OVER_AFTER_S,
) -> OrderRefused | None:
    """Return why orders of the presented epoch are refused, None if they are obeyed.

    Orders without an epoch come from a version that did not send one, and are obeyed.
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
        f"this controller was replaced: it has epoch {presented.epoch}, and epoch {current.epoch} "
        "has been started on the same store"
    )
    return OrderRefused(message, "stop this controller: another one has taken over its store")
