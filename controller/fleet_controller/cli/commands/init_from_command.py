"""Owns `fleetctl init --from-command`: read a pasted launch, print or write the job made of it and
what was found.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet_controller.cli.commands.lint import finding_lines, findings_summary
from fleet_controller.cli.input_files import read_text
from fleet_controller.cli.terminal.console import Console
from fleet_controller.importers.import_launch import OK, ImportedLaunch, import_launch
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """The job file to standard output or to `-o`, findings to standard error; 2 when something must
    be edited.
    """
    pasted = import_launch(read_text(arguments.from_command), arguments.from_command)
    written = _write(pasted, arguments) if arguments.output and pasted.job_file else ""
    if arguments.json:
        console.print_json(pasted.to_json())
    else:
        if not arguments.output:
            console.print_text(pasted.job_file)
        console.print_stderr(
            *finding_lines(pasted.findings, console),
            findings_summary(arguments.from_command, pasted.findings),
        )
        console.print_stderr(*_next_steps(pasted, written))
    return ExitCode.DONE if pasted.verdict == OK else ExitCode.USAGE_ERROR


def _write(pasted: ImportedLaunch, arguments: argparse.Namespace) -> str:
    path = Path(arguments.output)
    if path.exists() and not arguments.force:
        raise ConfigError(
            f"{path} exists already; nothing was written",
            "--force overwrites, or name another file",
        )
    try:
        path.write_text(pasted.job_file, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", "name a file that you may write"
        ) from error
    return str(path)


def _next_steps(pasted: ImportedLaunch, written: str) -> list[str]:
    """What was written, and what comes next."""
    if not pasted.job_file:
        return ["no job file was made: mend the errors above, and run it again"]
    first = (
        "fill in what is marked `# fill in`, then: "
        if "# fill in" in pasted.job_file
        else "mend the errors above, then: "
    )
    following = (
        f"next: {'' if pasted.verdict == OK else first}fleetctl lint {written or 'job.yaml'}"
    )
    return [f"wrote {written}", following] if written else [following]
