"""Runs `fleetctl`: parses the command line, calls the command, and turns an error into a message
and an exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from fleet_controller.cli.argument_parser import parse_command_line
from fleet_controller.cli.missing_extras import missing_extra_error
from fleet_controller.cli.terminal.console import Console, process_console
from fleet_protos.errors import Bug, ExitCode, FleetError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code.

    Raises SystemExit for --help (0) and wrong options (2), both from argparse.
    """
    arguments = parse_command_line(argv)
    _reopen_closed_streams()
    # The errors that we raise describe a lost connection; gRPC's own log lines would repeat it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    out = process_console(arguments.debug)
    try:
        # Only the module of this command is imported: `fleetctl --help` must not wait for SciPy.
        return int(
            import_module(f"fleet_controller.cli.commands.{arguments.command}").run(arguments, out)
        )
    except BrokenPipeError:  # `fleetctl ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except KeyboardInterrupt:
        out.print_stderr("interrupted")
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 -- the top: anything but a FleetError is a bug
        return _report_exception(error, arguments, out)


def _reopen_closed_streams() -> None:
    """Open streams that the parent closed (`>&-`), so that output to them is dropped."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _report_exception(error: Exception, arguments: argparse.Namespace, out: Console) -> int:
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and not error.name.startswith("fleet_")
    ):
        error = missing_extra_error(error.name, "controller")
    if isinstance(error, FleetError) and not isinstance(error, Bug):
        return _print_error(error, out)
    return _print_bug(error, arguments, out)


def _print_error(error: FleetError, out: Console) -> int:
    findings = getattr(error, "findings", ())  # FileRejected has all findings of the file
    hint = [f"  {error.hint}"] if error.hint else []
    out.print_stderr(
        *(map(str, findings) if findings else [f"{out.styled('error')}: {error.message}", *hint])
    )
    return error.exit_code


def _print_bug(error: Exception, arguments: argparse.Namespace, out: Console) -> int:
    report = "".join(traceback.format_exception(error))
    if arguments.debug:
        out.print_stderr(report.rstrip())
    named = f"{type(error).__name__}: {error}".partition("\n")[0]
    out.print_stderr(
        f"{out.styled('error')}: a bug in fleetctl: {named}",
        f"  {_write_bug_log(report, arguments)}",
    )
    return ExitCode.BUG


def _write_bug_log(report: str, arguments: argparse.Namespace) -> str:
    from fleet_controller.cli.state_folder import resolve_state_folder

    folder = resolve_state_folder(arguments.state).bugs
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / f"{os.getpid()}-{arguments.command}.log"
        file.write_text(f"fleetctl {' '.join(sys.argv[1:])}\n\n{report}")
    except OSError as error:
        return (
            f"the log could not be written ({error}); run again with --debug to see the traceback"
        )
    return f"please report the bug with this log: {file}"


if __name__ == "__main__":
    sys.exit(main())
