"""Finds and loads the fleet file that a command means."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
from fleet_protos.errors import ConfigError

if TYPE_CHECKING:
    from fleet_controller.core.controller_api import JobDetail
    from fleet_controller.core.inventory import Inventory


def read_fleet(path: Path) -> Inventory:
    """Load the fleet of a file, and resolve its SSH settings with the user's ~/.ssh/config.

    Raises FleetRejected with all findings. Raises ConfigError for a file that cannot be read.
    """
    from fleet_controller.fleet_file.fleet_loader import load_fleet_file

    return load_fleet_file(path).inventory


def find_fleet_of_job(detail: JobDetail, named: str | None) -> Inventory | None:
    """Return the fleet of the fleet file if the job has trials on any of the fleet's hosts, else
    None.
    """
    path = find_fleet_file(named)
    if path is None:
        return None
    fleet = read_fleet(path)
    hosts = {host for trial in detail.trials for host in (trial.host, *trial.nodes)}
    return fleet if any(host.name in hosts for host in fleet.hosts) else None


def load_required_fleet(arguments: argparse.Namespace) -> Inventory:
    """Load the fleet for a command that needs a fleet file.

    Raises ConfigError if there is no fleet file. Raises what `read_fleet` raises.
    """
    path = find_fleet_file(arguments.fleet)
    if path is None:
        raise ConfigError(
            "there is no fleet file here",
            "`fleetctl init --fleet` writes one; --fleet FILE or $BENCHFLEET_FLEET names another",
        )
    return read_fleet(path)
