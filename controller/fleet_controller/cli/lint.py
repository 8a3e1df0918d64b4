"""Owns `fleetctl lint`: check a job file and print what was found. Judges nothing itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fleet_controller.cli.console import Console
from fleet_controller.cli.input import load
from fleet_controller.spec.findings import ERROR, Finding, JobRejected, has_errors
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print every finding; 2 when one is an error."""
    try:
        findings: Sequence[Finding] = load(arguments.file).findings
    except JobRejected as rejected:
        findings = rejected.findings
    if arguments.json:
        console.json({"findings": [finding.to_json() for finding in findings]})
    else:
        console.lines(finding_lines(findings, console))
        console.tell(_summary(arguments.file, findings))
    return ExitCode.USER_MUST_EDIT if has_errors(findings) else ExitCode.DONE


def finding_lines(findings: Sequence[Finding], console: Console) -> list[str]:
    """One finding a line, the hint on a line below, severities coloured on a terminal."""
    lines = []
    for finding in findings:
        severity = console.styled(finding.severity)
        lines.append(f"{finding.file}:{finding.line}:{finding.column}: {severity} {finding.code}: {finding.message}")
        if finding.hint:
            lines.append(f"    {finding.hint}")
    return lines


def _summary(file: str, findings: Sequence[Finding]) -> str:
    if not findings:
        return f"{file}: nothing to tell"
    errors = sum(finding.severity == ERROR for finding in findings)
    others = len(findings) - errors
    return f"{file}: {_counted(errors, 'error')}, {_counted(others, 'other finding')}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
