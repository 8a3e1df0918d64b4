"""Implements `fleetctl init --from-command`: makes a job file from an existing launch command."""

from __future__ import annotations

import argparse

from fleet_controller.cli.input_files import read_text
from fleet_controller.cli.output_files import write_output_file
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.finding_lines import finding_lines, findings_summary
from fleet_controller.importers.import_launch import OK, ImportedLaunch, import_launch
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the job file or write it to `-o`, and print findings to standard error.

    Return USAGE_ERROR when the user must edit something.
    """
    source = arguments.from_command
    imported = import_launch(read_text(source), source)
    written = arguments.output if imported.job_file else ""
    if written:
        write_output_file(written, imported.job_file, overwrite=arguments.force)
    if arguments.json:
        console.print_json(imported.to_json())
    else:
        if not arguments.output:
            console.print_text(imported.job_file)
        console.print_stderr(
            *finding_lines(imported.findings, console),
            findings_summary(source, imported.findings),
            *_next_steps(imported, written),
        )
    return ExitCode.DONE if imported.verdict == OK else ExitCode.USAGE_ERROR


def _next_steps(imported: ImportedLaunch, written: str) -> list[str]:
    """Return which file was written and what to do next."""
    if not imported.job_file:
        return ["no job file was made: fix the errors above and run the command again"]
    first = ""
    if imported.verdict != OK:
        first = (
            "fill in the places marked `# fill in`, then run: "
            if "# fill in" in imported.job_file
            else "fix the errors above, then run: "
        )
    job_file = written or "job.yaml"
    next_step = f"next: {first}fleetctl lint {job_file}"
    return [f"wrote {written}", next_step] if written else [next_step]
