"""Formats the findings of `lint` and of the commands that load a job or fleet file."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_controller.cli.terminal.console import Console
from fleet_controller.yaml.findings import ERROR, Finding


def finding_lines(findings: Sequence[Finding], console: Console) -> list[str]:
    """Format each finding on one line and its hint on the next line. Severities are coloured on a
    terminal.
    """
    lines = []
    for finding in findings:
        severity = console.styled(finding.severity)
        place = f"{finding.file}:{finding.line}:{finding.column}"
        lines.append(f"{place}: {severity} {finding.code}: {finding.message}")
        if finding.hint:
            lines.append(f"    {finding.hint}")
    return lines


def findings_summary(file: str, findings: Sequence[Finding]) -> str:
    """Return one line with the number of errors and the number of other findings."""
    if not findings:
        return f"{file}: no findings"
    errors = sum(finding.severity == ERROR for finding in findings)
    others = len(findings) - errors
    return f"{file}: {_count_text(errors, 'error')}, {_count_text(others, 'other finding')}"


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
