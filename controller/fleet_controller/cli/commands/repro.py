"""Implements `fleetctl repro`: prints a shell script that starts the server of a trial by hand."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import fetch_trial
from fleet_controller.cli.terminal.console import Console
from fleet_controller.report.repro_script import repro_script
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the script. Raises ConfigError when the attempt launched no server."""
    detail = asyncio.run(fetch_trial(arguments, with_log=False))
    status = detail.status
    where = f" on {status.host}" if status.host else ""
    about = f"trial {status.trial_id}, attempt {status.attempt} ({status.variant}{where})"
    console.print_text(repro_script(detail.events, about))
    return ExitCode.DONE
