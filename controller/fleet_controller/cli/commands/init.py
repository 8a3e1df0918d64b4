"""Implements `fleetctl init`: writes a commented job file, with `--fleet` also a fleet file and the
fleet's authority, or makes a job file from a launch command or a sweep.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.trust_setup import ensure_authority
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write the files and return the exit code."""
    _check_options(arguments)
    if arguments.from_command:
        from fleet_controller.cli.commands import init_from_command

        return init_from_command.run(arguments, console)
    if arguments.spec_sweep:
        from fleet_controller.cli.commands import init_spec_sweep

        return init_spec_sweep.run(arguments, console)
    return _write_templates(arguments, console)


def _write_templates(arguments: argparse.Namespace, console: Console) -> int:
    from fleet_controller.job_file.job_template import job_template

    job_file = Path(arguments.folder) / "job.yaml"
    if arguments.with_fleet:
        _write_fleet(arguments, console)
        if job_file.exists():
            console.print_stderr(f"kept {job_file}, which exists already")
            return ExitCode.DONE
    _write_new(job_file, job_template(), arguments.force, console)
    console.print_stderr(f"next: fleetctl lint {job_file}")
    return ExitCode.DONE


def _write_fleet(arguments: argparse.Namespace, console: Console) -> None:
    """Write the fleet file, and create the authority unless there is one.

    The authority comes first, so that an `init` that was interrupted can be repeated.
    """
    from fleet_controller.fleet_file.fleet_template import fleet_template

    console.print_stderr(ensure_authority(arguments))
    fleet_file = Path(arguments.folder) / "fleet.yaml"
    _write_new(fleet_file, fleet_template(), arguments.force, console)


def _write_new(path: Path, text: str, overwrite: bool, console: Console) -> None:
    """Write a file and say so. Raises ConfigError if it exists and may not be overwritten."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists already and was kept",
            "add --force to overwrite it, or name another folder",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", "name a folder that you may write to"
        ) from error
    console.print_lines([f"wrote {path}"])


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for options that do not go together."""
    sources = [
        source for source in (arguments.from_command, arguments.spec_sweep) if source is not None
    ]
    if len(sources) > 1:
        raise ConfigError(
            "--from-command and --spec-sweep cannot be used together", "give one of them"
        )
    if sources and arguments.with_fleet:
        raise ConfigError(
            "--fleet cannot be used with --from-command or --spec-sweep",
            "run `fleetctl init --fleet` for the fleet, and init with the other option for the job",
        )
    if "" in sources:
        raise ConfigError(
            "--from-command or --spec-sweep has an empty value",
            "check for an unset shell variable; give a file name, or the entries of the sweep",
        )
    if not sources and (arguments.output or arguments.json):
        raise ConfigError(
            "-o and --json need --from-command or --spec-sweep",
            "without these two options, init writes job.yaml into a folder",
        )
