"""Implements `fleetctl init`: writes a commented job file and fleet file, or makes a job file from
a launch command or a sweep.
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
    from fleet_controller.fleet_file.fleet_template import fleet_template
    from fleet_controller.job_file.job_template import job_template

    folder = Path(arguments.folder)
    files = {folder / "job.yaml": job_template(), folder / "fleet.yaml": fleet_template()}
    existing = [str(path) for path in files if path.exists()]
    if existing and not arguments.force:
        # An earlier init may have been interrupted after it wrote its files.
        console.print_stderr(ensure_authority(arguments))
        raise ConfigError(
            f"{', '.join(existing)} exists already; nothing was written",
            "add --force to overwrite, or name another folder",
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
    job_file = folder / "job.yaml"
    console.print_stderr(f"next: fleetctl lint {job_file}")
    return ExitCode.DONE


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for options that do not go together."""
    sources = [
        source for source in (arguments.from_command, arguments.spec_sweep) if source is not None
    ]
    if len(sources) > 1:
        raise ConfigError(
            "--from-command and --spec-sweep cannot be used together", "give one of them"
        )
    if "" in sources:
        raise ConfigError(
            "--from-command or --spec-sweep has an empty value",
            "check for an unset shell variable; give a file name, or the entries of the sweep",
        )
    if not sources and (arguments.output or arguments.json):
        raise ConfigError(
            "-o and --json need --from-command or --spec-sweep",
            "without these two options, init writes two files into a folder",
        )
