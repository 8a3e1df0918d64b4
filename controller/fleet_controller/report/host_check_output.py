"""Formats the results of `fleetctl hosts check`: a line for each host, the table of findings, and
JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet_controller.core.controller_api import HostCheck, error_messages
from fleet_controller.report.table import Table

JSON_VERSION = 1


def check_line(check: HostCheck) -> str:
    """Format the result of one host: `gpu01: 1 error, 2 warnings (0.4 s)`."""
    counts = [
        (sum(finding.severity == word for finding in check.findings), word)
        for word in ("error", "warning")
    ]
    counts_text = (
        ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
        or "ok"
    )
    return f"{check.host}: {counts_text if check.reached else 'not reached'} ({check.took_s:.1f} s)"


def checks_table(checks: Sequence[HostCheck]) -> Table:
    """Return one row for each finding, and one row for each host without findings."""
    rows = tuple(
        row
        for check in checks
        for row in (
            [
                (check.host, finding.severity, finding.code, finding.message)
                for finding in check.findings
            ]
            or [(check.host, "ok", "", "")]
        )
    )
    return Table(("host", "severity", "finding", "message"), rows, frozenset()).without_empty(
        "finding", "message"
    )


def check_hint_lines(checks: Sequence[HostCheck]) -> list[str]:
    """Return the hint of each error and warning code once, after an empty line."""
    hints: dict[str, str] = {}
    for check in checks:
        for finding in check.findings:
            if finding.severity != "info" and finding.hint:
                hints.setdefault(finding.code, finding.hint)
    return ["", *(f"{code}: {hint}" for code, hint in hints.items())] if hints else []


def checks_json(checks: Sequence[HostCheck]) -> dict[str, Any]:
    """Return the JSON of the `hosts check` contract in docs/json.md."""
    return {"version": JSON_VERSION, "hosts": [_check_json(check) for check in checks]}


def _check_json(check: HostCheck) -> dict[str, Any]:
    findings = [
        {
            "code": finding.code,
            "severity": finding.severity,
            "message": finding.message,
            "hint": finding.hint,
        }
        for finding in check.findings
    ]
    is_ok = check.reached and not error_messages(check)
    return {
        "host": check.host,
        "reached": check.reached,
        "ok": is_ok,
        "took_s": check.took_s,
        "findings": findings,
    }
