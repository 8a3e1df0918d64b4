"""Owns what holds of a host when the fleet file and its agent both speak of it: the file wins, and
a difference is told. Asks neither.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet_controller.core.inventory import FleetHost

GPUS_UNKNOWN = (
    1 << 30
)  # GPUs of a host that nobody has told of yet: as many as asked for, until its agent says


def merge_labels(fleet_host: FleetHost | None, reported: Mapping[str, str]) -> Mapping[str, str]:
    """What jobs select a host by: the labels of its agent, those of the file laid over them."""
    return reported if fleet_host is None else {**reported, **fleet_host.labels}


def label_differences(fleet_host: FleetHost | None, reported: Mapping[str, str]) -> tuple[str, ...]:
    """`gpu is a100 for the agent and h200 in the fleet file`, for each label that both have and
    that differs.
    """
    wanted = fleet_host.labels if fleet_host else {}
    return tuple(
        f"{name} is {value} for the agent and {wanted[name]} in the fleet file"
        for name, value in sorted(reported.items())
        if wanted.get(name, value) != value
    )


def merge_gpus(fleet_host: FleetHost | None, reported: int | None, simulated: bool = False) -> int:
    """GPUs that servers may use: as many as the agent has, and no more than the file says. `told`
    None: no contact yet.
    """
    limit = (
        None
        if fleet_host is None
        else (fleet_host.simulated_gpus or None)
        if simulated
        else fleet_host.gpus
    )
    if reported is None:
        return (0 if fleet_host is None else GPUS_UNKNOWN) if limit is None else limit
    return reported if limit is None else min(reported, limit)
