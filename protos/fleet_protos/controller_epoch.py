"""Which controller gives an order to an agent, and which of that controller's starts: the value of
the message Lease.
"""

from __future__ import annotations

from fleet_protos.v1.agent_values import ControllerEpoch

__all__ = ["ControllerEpoch", "names_controller"]


def names_controller(epoch: ControllerEpoch) -> bool:
    """Return whether it names a controller. A peer from before epochs existed and a read-only
    observer name none.
    """
    return bool(epoch.controller_id)
