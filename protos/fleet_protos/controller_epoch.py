"""Which controller gives an order to an agent, and which of that controller's starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerEpoch:
    """What a controller presents with each order.

    `controller_id` belongs to its store and survives restarts; `epoch` grows by one at each start;
    `protocol` is the contract's minor number.
    """

    controller_id: str = ""
    epoch: int = 0
    protocol: int = 0

    @property
    def names_controller(self) -> bool:
        """Whether it names a controller. A peer from before epochs existed and a read-only observer
        name none.
        """
        return bool(self.controller_id)
