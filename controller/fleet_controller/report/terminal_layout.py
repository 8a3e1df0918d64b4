"""Owns how tables and comparisons reach a screen: the widest layout that fits, coloured or plain. Cuts nothing, prints nothing."""

from __future__ import annotations

import io
from dataclasses import replace

from fleet_controller.analysis.compare_runs import Comparison
from fleet_controller.report.comparison_output import (
    heading_of,
    narrow_of,
    remarks_of,
    sections_of,
    table_of,
)
from fleet_controller.report.table import Table, aligned, upright
from fleet_protos.escape import plain_line

STYLES = {
    "FASTER": "bold green", "SLOWER": "bold red", "EQUIVALENT": "cyan", "INCONCLUSIVE": "yellow",
    "ok": "green", "done": "green", "failed": "bold red", "cancelled": "yellow", "running": "cyan",
    "connected": "green", "unreachable": "bold red", "error": "bold red", "warning": "yellow", "info": "cyan",
}  # fmt: skip
_RICH_GAP = 2


def table_text(table: Table, width: int | None, colour: bool) -> str:
    """The table for a terminal of `width` cells, or for a pipe (None). Ends with a newline."""
    if not table.rows:
        return ""
    table = replace(table, rows=tuple(tuple(map(plain_line, row)) for row in table.rows))
    if width is None:
        return _joined(aligned(table))
    return _rich(table, colour) if table.fits(width, _RICH_GAP) else _joined(upright(table))


def comparison_text(comparison: Comparison, width: int | None, colour: bool) -> str:
    """Heading, verdicts and remarks: one table, else one for each workload and metric, else short lines."""
    remarks = remarks_of(comparison)
    body = _verdicts(comparison, width, colour) if comparison.rows else ""
    return "\n".join(part for part in (_joined([heading_of(comparison)]), body, _joined(remarks) if remarks else "") if part)


def _verdicts(comparison: Comparison, width: int | None, colour: bool) -> str:
    whole = table_of(comparison)
    if width is None or whole.fits(width, _RICH_GAP):
        return table_text(whole, width, colour)
    sections = sections_of(comparison)
    if all(part.fits(width, _RICH_GAP) for _, part in sections):
        return "\n".join(f"{name}\n{table_text(part, width, colour)}" for name, part in sections)
    return _joined(narrow_of(comparison))


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _rich(table: Table, colour: bool) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in table.columns:
        grid.add_column(Text(name), justify="right" if name in table.numbers else "left", no_wrap=True)
    for row in table.rows:
        grid.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    out = io.StringIO()
    # As wide as the table: whether it fits the terminal has been decided, and Rich must not cut it.
    wide = sum(table.widths()) + 4 * len(table.columns)
    Console(file=out, width=wide, force_terminal=colour, color_system="standard" if colour else None).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
