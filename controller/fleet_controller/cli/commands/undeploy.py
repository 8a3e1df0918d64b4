"""Implements `fleetctl undeploy`: removes agents from the hosts of the fleet file."""

from __future__ import annotations

import argparse

from fleet_controller.cli.commands.deploy import run_on_fleet
from fleet_controller.cli.terminal.console import Console
from fleet_controller.deploy.undeploy_host import undeploy_host


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Remove agents and return the exit code. Raises ConfigError if the work is impossible on all
    hosts.
    """
    return run_on_fleet(undeploy_host, arguments, console)
