"""Defines the controller epoch: which controller gives an order, and which of its starts. It is the
value of the message Lease.
"""

from __future__ import annotations

from fleet_protos.v1.agent_values import ControllerEpoch

__all__ = ["ControllerEpoch", "names_controller"]


def names_controller(epoch: ControllerEpoch) -> bool:
    """Return whether the epoch names a controller. A read-only observer names no controller, and
    neither does a peer from before epochs existed.
    """
    return bool(epoch.controller_id)
