"""Owns `fleetctl logs` and `repro`: what is known of one trial. Starts nothing."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import TrialDetail
from fleet_controller.report.failure_causes import cause_lines
from fleet_controller.report.repro_script import repro_script
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the server's log, or the script that starts that server by hand."""
    wants_log = arguments.command == "logs"
    detail = asyncio.run(_detail(arguments, wants_log))
    status = detail.status
    if not wants_log:
        where = f" on {status.host}" if status.host else ""
        console.print_text(
            repro_script(
                detail.events,
                f"trial {status.trial_id}, attempt {status.attempt} ({status.variant}{where})",
            )
        )
        return ExitCode.DONE
    if not detail.server_log:
        message = f"trial {status.trial_id}, attempt {status.attempt}: no server log is there (phase {status.phase.name.lower()})"
        raise ConfigError(
            message, "an external server has none; that of a trial in its launch comes soon"
        )
    console.print_text(
        detail.server_log if detail.server_log.endswith("\n") else f"{detail.server_log}\n"
    )
    console.print_stderr(*cause_lines(detail.events))
    return ExitCode.DONE


async def _detail(arguments: argparse.Namespace, with_log: bool) -> TrialDetail:
    async with open_controller(arguments) as controller:
        return await controller.trial(arguments.trial, arguments.attempt, with_log)
