"""Lays out tables and comparisons for a terminal. Takes the widest layout that fits, with or
without colours.
"""

from __future__ import annotations

import io
from dataclasses import replace

from fleet_controller.analysis.comparison_values import Comparison
from fleet_controller.report.comparison_output import (
    comparison_heading,
    comparison_narrow_lines,
    comparison_remarks,
    comparison_sections,
    comparison_table,
)
from fleet_controller.report.table import WORD_STYLES, Table, aligned_lines, stacked_lines
from fleet_protos.escape import escape_to_one_line

_RICH_GAP = 2


def table_text(table: Table, width: int | None, colour: bool) -> str:
    """Format a table for a terminal of `width` cells, or for a pipe if `width` is None. The text
    ends with a newline.
    """
    if not table.rows:
        return ""
    table = replace(table, rows=tuple(tuple(map(escape_to_one_line, row)) for row in table.rows))
    if width is None:
        return _join_lines(aligned_lines(table))
    return (
        _rich_table_text(table, colour)
        if table.fits(width, _RICH_GAP)
        else _join_lines(stacked_lines(table))
    )


def comparison_text(comparison: Comparison, width: int | None, colour: bool) -> str:
    """Format heading, verdicts and remarks.

    The verdicts take the first form that fits `width`: one table, a table for each host, workload
    and metric, or short lines.
    """
    remarks = comparison_remarks(comparison)
    body = _verdicts_text(comparison, width, colour) if comparison.rows else ""
    return "\n".join(
        part
        for part in (
            _join_lines([comparison_heading(comparison)]),
            body,
            _join_lines(remarks) if remarks else "",
        )
        if part
    )


def _verdicts_text(comparison: Comparison, width: int | None, colour: bool) -> str:
    full_table = comparison_table(comparison)
    if width is None or full_table.fits(width, _RICH_GAP):
        return table_text(full_table, width, colour)
    sections = comparison_sections(comparison)
    if all(part.fits(width, _RICH_GAP) for _, part in sections):
        return "\n".join(f"{name}\n{table_text(part, width, colour)}" for name, part in sections)
    return _join_lines(comparison_narrow_lines(comparison))


def _join_lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _rich_table_text(table: Table, colour: bool) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in table.columns:
        grid.add_column(
            Text(name), justify="right" if name in table.numbers else "left", no_wrap=True
        )
    for row in table.rows:
        grid.add_row(*(Text(cell, style=WORD_STYLES.get(cell, "")) for cell in row))
    out = io.StringIO()
    # Wide enough for the whole table: the caller checked that it fits, and Rich must not cut it.
    wide = sum(table.widths()) + 4 * len(table.columns)
    Console(
        file=out, width=wide, force_terminal=colour, color_system="standard" if colour else None
    ).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
