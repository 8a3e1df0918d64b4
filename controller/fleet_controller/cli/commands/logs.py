"""Implements `fleetctl logs`: prints the server log of a trial."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import fetch_trial
from fleet_controller.cli.terminal.console import Console
from fleet_controller.report.failure_causes import cause_lines
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the server log, and print the cause of a failure to standard error. Raises ConfigError
    if there is no log.
    """
    detail = asyncio.run(fetch_trial(arguments, with_log=True))
    status = detail.status
    if not detail.server_log:
        phase = status.phase.name.lower()
        raise ConfigError(
            f"attempt {status.attempt} of trial {status.trial_id} has no server log (its phase is"
            f" {phase})",
            "an external server has no log; the log of a launching trial will appear shortly",
        )
    console.print_text(
        detail.server_log if detail.server_log.endswith("\n") else f"{detail.server_log}\n"
    )
    console.print_stderr(*cause_lines(detail.events))
    return ExitCode.DONE
