"""Implements `fleetctl schema`: prints the JSON Schema of a job or fleet file."""

from __future__ import annotations

import argparse

from fleet_controller.cli.terminal.console import Console
from fleet_controller.fleet_file.fleet_models import fleet_schema
from fleet_controller.job_file.job_models import job_schema
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the schema of `arguments.kind`."""
    console.print_json(fleet_schema() if arguments.kind == "fleet" else job_schema())
    return ExitCode.DONE
