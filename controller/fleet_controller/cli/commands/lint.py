"""Implements `fleetctl lint`: checks a job file, a fleet file, or the job that an existing launch
command would make.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from fleet_controller.cli.input_files import base_folder, read_bytes
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.finding_lines import finding_lines, findings_summary
from fleet_controller.core.job import Job
from fleet_controller.yaml.findings import (
    Finding,
    FleetRejected,
    JobRejected,
    has_errors,
    in_order,
)
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print every finding. Return USAGE_ERROR if a finding is an error."""
    findings = _findings(arguments.file)
    if arguments.json:
        console.print_json({"findings": [finding.to_json() for finding in findings]})
    else:
        console.print_lines(finding_lines(findings, console))
        console.print_stderr(findings_summary(arguments.file, findings))
    return ExitCode.USAGE_ERROR if has_errors(findings) else ExitCode.DONE


def _findings(name: str) -> Sequence[Finding]:
    from fleet_controller.importers.detect_format import is_importable
    from fleet_controller.importers.import_launch import import_launch
    from fleet_controller.job_file.job_loader import load_job

    content = read_bytes(name)
    text = content.decode("utf-8", errors="replace")
    if is_fleet(text):
        return _fleet_findings(content, name)
    if is_importable(text):
        return import_launch(text, name).findings
    try:
        loaded = load_job(content, name, base_folder(name))
        return in_order((*loaded.findings, *_host_variables(loaded.job)))
    except JobRejected as rejected:
        return rejected.findings


def _host_variables(job: Job) -> Sequence[Finding]:
    """Return what hosts of the fleet file add to the job's variables. A fleet file with errors
    adds nothing; it is linted on its own.
    """
    from fleet_controller.cli.commands.plan import plan_for_fleet
    from fleet_controller.cli.fleet_file_option import read_fleet
    from fleet_controller.fleet_file.find_fleet_file import find_fleet_file

    try:
        path = find_fleet_file("")
        found = plan_for_fleet(job, read_fleet(path)).findings if path else ()
    except ConfigError:
        return ()
    return [finding for finding in found if finding.code == "host_variable"]


def is_fleet(text: str) -> bool:
    """Return True for a fleet file.

    A file without a `kind` counts as a fleet file if it has a top-level key of a fleet file and no
    key of a job file.
    """
    kind = re.search(r"^[\"']?kind[\"']?\s*:\s*[\"']?(\w*)", text, re.MULTILINE)
    if kind and kind[1]:
        return kind[1].lower() == "fleet"
    keys = set(re.findall(r"^(\w+)\s*:", text, re.MULTILINE))
    return bool(keys & {"hosts", "groups", "defaults"}) and not keys & {
        "engine",
        "model",
        "workloads",
    }


def _fleet_findings(content: bytes, name: str) -> Sequence[Finding]:
    from fleet_controller.fleet_file.fleet_loader import check_fleet

    try:
        return check_fleet(content, name).findings
    except FleetRejected as rejected:
        return rejected.findings
