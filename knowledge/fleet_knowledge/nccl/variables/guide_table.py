"""Renders the variable table of docs/nccl.md, so that the guide always agrees with the code."""

from __future__ import annotations

from fleet_knowledge.nccl.variables.known_variables import VARIABLES
from fleet_knowledge.nccl.variables.variable import NcclVariable, describe_versions

_HEAD = (
    "| variable | what it sets | values | default | versions | read |\n|---|---|---|---|---|---|"
)


def render_variable_table() -> str:
    """Return the table in Markdown. NCCL's variables come before RCCL's variables. Within each
    library, the variables that every launch reads come first; otherwise the order is by name.
    """
    rows = sorted(
        VARIABLES.values(),
        key=lambda row: (row.name.startswith("RCCL"), not row.always_read, row.name),
    )
    return "\n".join((_HEAD, *map(_line, rows)))


def _line(row: NcclVariable) -> str:
    default = (
        "; ".join(f"{value} ({describe_versions(versions)})" for versions, value in row.defaults)
        or row.default
    )
    cells = (f"`{row.name}`", _meaning(row), str(row.values), default, _versions(row), _read(row))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(row: NcclVariable) -> str:
    return f"{row.meaning}. {row.note}" if row.note else row.meaning


def _versions(row: NcclVariable) -> str:
    known = "" if not row.exists.first and not row.exists.last else describe_versions(row.exists)
    old = f"deprecated {describe_versions(row.deprecated)}" if row.deprecated else ""
    instead = f"use `{row.replaced_by}`" if row.replaced_by else ""
    return ", ".join(filter(None, (known, old, instead)))


def _read(row: NcclVariable) -> str:
    if row.never_logged:
        return "never named in the log"
    return (
        "always"
        if row.always_read
        else f"when {row.read_when}"
        if row.read_when
        else "by no version in use"
    )
