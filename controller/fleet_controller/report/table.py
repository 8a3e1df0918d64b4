"""Formats tables as aligned columns, as one field on each line, as CSV or as Markdown. No text is
cut off.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

# word in a cell or message → its colour on a terminal, as Rich names it
WORD_STYLES = {
    "FASTER": "bold green",
    "SLOWER": "bold red",
    "EQUIVALENT": "cyan",
    "INCONCLUSIVE": "yellow",
    "ok": "green",
    "done": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "running": "cyan",
    "connected": "green",
    "unreachable": "bold red",
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text. `numbers` names the columns that are aligned to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()

    def without_empty(self, *names: str) -> Table:
        """Return the table without those of the named columns that are empty in every row."""
        drop = {
            index
            for index, name in enumerate(self.columns)
            if name in names and not any(row[index] for row in self.rows)
        }
        kept = [index for index in range(len(self.columns)) if index not in drop]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return Table(tuple(self.columns[index] for index in kept), rows, self.numbers)

    def widths(self) -> list[int]:
        """Return the width of each column in terminal cells."""
        return [
            max(map(cell_width, column)) for column in zip(self.columns, *self.rows, strict=True)
        ]

    def fits(self, width: int, gap: int = 2) -> bool:
        """Return True when aligned columns, `gap` cells apart, fit into `width` cells."""
        return sum(self.widths()) + gap * (len(self.columns) - 1) <= width


def cell_width(text: str) -> int:
    """Return the width of a text in terminal cells."""
    return sum(
        0 if unicodedata.combining(mark) else 2 if unicodedata.east_asian_width(mark) in "WF" else 1
        for mark in text
    )


def aligned_lines(table: Table) -> list[str]:
    """Return a header line and one line for each row. The columns are two blanks apart, and lines
    may have any width.
    """
    widths = table.widths()
    lines = []
    for row in (table.columns, *table.rows):
        cells = []
        for name, cell, width in zip(table.columns, row, widths, strict=True):
            blanks = " " * (width - cell_width(cell))
            cells.append(blanks + cell if name in table.numbers else cell + blanks)
        lines.append("  ".join(cells).rstrip())
    return lines


def stacked_lines(table: Table) -> list[str]:
    """Return each field on its own line, with an empty line between rows, for narrow terminals."""
    label = max(map(cell_width, table.columns))
    blocks = [
        [
            f"{name}{' ' * (label - cell_width(name))}  {cell}"
            for name, cell in zip(table.columns, row, strict=True)
            if cell
        ]
        for row in table.rows
    ]
    return [line for index, block in enumerate(blocks) for line in ([""] if index else []) + block]


def as_csv(table: Table) -> str:
    """Return comma-separated values with a header. Each line ends with a newline."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return out.getvalue()


def as_markdown(table: Table) -> str:
    """Return a Markdown table. A pipe inside a cell is escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    marks = ["---:" if name in table.numbers else "---" for name in table.columns]
    return "\n".join([line(table.columns), line(marks), *map(line, table.rows)]) + "\n"
