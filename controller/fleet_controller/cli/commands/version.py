"""Implements `fleetctl version`."""

from __future__ import annotations

import argparse

from fleet_controller.cli.terminal.console import Console
from fleet_protos import __version__
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the version."""
    if arguments.json:
        console.print_json({"version": 1, "fleetctl": __version__})
    else:
        console.print_lines([f"fleetctl {__version__}"])
    return ExitCode.DONE
