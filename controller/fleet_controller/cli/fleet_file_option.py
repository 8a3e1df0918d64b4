"""Owns which fleet file a command means, and its reading for the commands that need one. Judges no
content.
"""

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
    """The fleet of a file, ssh settings resolved with the user's ~/.ssh/config. Raises
    FleetRejected with all findings, ConfigError.
    """
    from fleet_controller.fleet_file.fleet_loader import load_fleet_file

    return load_fleet_file(path).inventory


def find_fleet_of_job(detail: JobDetail, named: str | None) -> Inventory | None:
    """The fleet file's hosts when a job has trials on any of them; None when it is a job of this
    machine.
    """
    path = find_fleet_file(named)
    if path is None:
        return None
    fleet = read_fleet(path)
    hosts = {host for trial in detail.trials for host in (trial.host, *trial.nodes)}
    return fleet if any(host.name in hosts for host in fleet.hosts) else None


def load_required_fleet(arguments: argparse.Namespace) -> Inventory:
    """The fleet that a command needs. Raises ConfigError when there is no fleet file, and as
    `read_fleet`.
    """
    path = find_fleet_file(arguments.fleet)
    if path is None:
        raise ConfigError(
            "there is no fleet file here",
            "fleetctl init writes one; --fleet FILE or $BENCHFLEET_FLEET names another",
        )
    return read_fleet(path)
