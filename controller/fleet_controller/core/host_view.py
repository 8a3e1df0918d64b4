"""Owns what holds of a host when the fleet file and its agent both speak of it: the file wins, and a difference is told. Asks neither."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_controller.core.inventory import FleetHost

NOT_KNOWN = 1 << 30  # GPUs of a host that nobody has told of yet: as many as asked for, until its agent says


def labels_of(known: FleetHost | None, told: Mapping[str, str]) -> Mapping[str, str]:
    """What jobs select a host by: the labels of its agent, those of the file laid over them."""
    return told if known is None else {**told, **known.labels}


def differences(known: FleetHost | None, told: Mapping[str, str]) -> tuple[str, ...]:
    """`gpu is a100 for the agent and h200 in the fleet file`, for each label that both have and that differs."""
    wanted = known.labels if known else {}
    return tuple(
        f"{name} is {value} for the agent and {wanted[name]} in the fleet file"
        for name, value in sorted(told.items())
        if wanted.get(name, value) != value
    )


def gpus_of(known: FleetHost | None, told: int | None, simulated: bool = False) -> int:
    """GPUs that servers may use: as many as the agent has, and no more than the file says. `told` None: no contact yet."""
    limit = None if known is None else (known.simulated_gpus or None) if simulated else known.gpus
    if told is None:
        return (0 if known is None else NOT_KNOWN) if limit is None else limit
    return told if limit is None else min(told, limit)
