"""Combines what the fleet file and an agent say about a host. The fleet file has precedence."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_controller.core.inventory import FleetHost

# GPUs of a host whose agent has not reported yet: enough for any trial.
GPUS_UNKNOWN = 1 << 30


def merge_labels(fleet_host: FleetHost | None, reported: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels by which jobs select a host. These are the agent's labels, overridden by
    the labels of the fleet file.
    """
    return reported if fleet_host is None else {**reported, **fleet_host.labels}


def label_differences(fleet_host: FleetHost | None, reported: Mapping[str, str]) -> tuple[str, ...]:
    """Return a text for each label to which agent and fleet file give different values, such as
    `gpu is a100 for the agent and h200 in the fleet file`.
    """
    wanted = fleet_host.labels if fleet_host else {}
    return tuple(
        f"{name} is {value} for the agent and {wanted[name]} in the fleet file"
        for name, value in sorted(reported.items())
        if wanted.get(name, value) != value
    )


def merge_gpus(fleet_host: FleetHost | None, reported: int | None, simulated: bool = False) -> int:
    """Return how many GPUs servers may use: as many as the agent reports, but at most as many as
    the fleet file says.

    `reported` is None before the first contact.
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
