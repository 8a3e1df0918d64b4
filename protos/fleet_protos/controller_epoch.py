"""Owns who may order an agent about, as a value: which controller, and which of its starts. Decides
and keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerEpoch:
    """What a controller shows with each order. `controller_id` is of its store, `epoch` grows by
    one at each start on it.
    """

    controller_id: str = ""
    epoch: int = 0
    protocol: int = 0

    @property
    def names_controller(self) -> bool:
        """False for a peer from before leases, and for somebody who only looks on."""
        return bool(self.controller_id)
