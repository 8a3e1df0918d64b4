"""Owns `fleetctl init`, `schema` and `version`: files and facts that need no controller. Knows no
content of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet_controller.cli.commands.trust import ensure_authority
from fleet_controller.cli.terminal.console import Console
from fleet_protos import __version__
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One of the three, by name."""
    return {"init": _init, "schema": _schema, "version": _version}[arguments.command](
        arguments, console
    )


def _init(arguments: argparse.Namespace, console: Console) -> int:
    _check_init(arguments)
    if arguments.from_command:
        from fleet_controller.cli.commands import init_from_command

        return init_from_command.run(arguments, console)
    if arguments.spec_sweep:
        from fleet_controller.cli.commands import init_spec_sweep

        return init_spec_sweep.run(arguments, console)
    from fleet_controller.fleet_file.fleet_template import fleet_template
    from fleet_controller.job_file.job_template import job_template

    folder = Path(arguments.folder)
    files = {folder / "job.yaml": job_template(), folder / "fleet.yaml": fleet_template()}
    taken = [str(path) for path in files if path.exists()]
    if taken and not arguments.force:
        console.print_stderr(
            ensure_authority(arguments)
        )  # a first init that was cut off after its files is finished by a second
        raise ConfigError(
            f"{', '.join(taken)} exists already; nothing was written",
            "--force overwrites, or name another folder",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror}", "name a folder that you may write to"
        ) from error
    console.print_lines(f"wrote {path}" for path in files)
    console.print_stderr(ensure_authority(arguments))
    console.print_stderr(f"next: fleetctl lint {folder / 'job.yaml'}")
    return ExitCode.DONE


def _check_init(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not go together."""
    sources = [
        source for source in (arguments.from_command, arguments.spec_sweep) if source is not None
    ]
    if len(sources) > 1:
        raise ConfigError("--from-command and --spec-sweep make a job each", "give one of them")
    if "" in sources:
        raise ConfigError(
            "--from-command or --spec-sweep has no value",
            "an unset shell variable? name the file, or write the sweep",
        )
    if not sources and (arguments.output or arguments.json):
        raise ConfigError(
            "-o and --json go with --from-command or --spec-sweep",
            "without them, init writes two files into a folder",
        )


def _schema(arguments: argparse.Namespace, console: Console) -> int:
    from fleet_controller.fleet_file.fleet_models import fleet_schema
    from fleet_controller.job_file.job_models import job_schema

    console.print_json(fleet_schema() if arguments.kind == "fleet" else job_schema())
    return ExitCode.DONE


def _version(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.json:
        console.print_json({"version": 1, "fleetctl": __version__})
    else:
        console.print_lines([f"fleetctl {__version__}"])
    return ExitCode.DONE
