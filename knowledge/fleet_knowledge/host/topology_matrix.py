"""Parses a device matrix into labels and cells.

The matrix may be separated by tabs or blanks, and its lines may be cut off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_knowledge.host.link_types import PEER_ACCESS, parse_link_type

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\([A-Z]|\x1b[=>]|[\x0e\x0f]")
_LINE_PREFIXES = (
    re.compile(r"^[ ]?>[ ]?", re.M),
    re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)[ ]?", re.M),
    re.compile(r"^[\w.-]+[ ]+\|[ ]", re.M),
)
_DEVICE = r"GPU ?\d+(?:[ /:]+MIG[ -]?\d+)?"
_WORD = re.compile(rf"CPU Affinity|NUMA Affinity|GPU NUMA ID|{_DEVICE}|\S+")
_LABEL = re.compile(rf"\s*({_DEVICE}|(?:MIG|NIC)[ -]?\d+|[a-z][a-z0-9]*_[\w-]+)", re.I)
_GPU = re.compile(r"GPU ?(\d+)")
_CPUS = re.compile(r"[\d,-]+")
_CELL_WIDTH = 8
AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The row of one device.

    `cells` maps column labels to cells, without blank cells. `affinities` holds the columns after
    the matrix. `cut` says whether the line ended early.
    """

    cells: Mapping[str, str] = field(default_factory=dict)
    affinities: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table of devices against devices: its column labels in order, and its rows by label.

    Rows may be missing. `tabs` says whether tabs separated the columns.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, MatrixRow]
    tabs: bool = False

    def cell(self, first: str, second: str) -> str:
        """Return the cell of a pair of devices; empty if there is none.

        Use the cell of the reverse pair if this cell is missing or its row was cut off.
        """
        row = self.rows.get(first, MatrixRow())
        mirrored = self.rows.get(second, MatrixRow()).cells.get(first, "")
        own = row.cells.get(second, "")
        return mirrored if mirrored and (not own or row.cut) else own


def strip_decoration(text: str) -> str:
    """Remove terminal codes, carriage returns, and the prefix of a log or quotation."""
    clean = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    return next(
        (
            pattern.sub("", clean)
            for pattern in _LINE_PREFIXES
            if _prefixes_every_line(pattern, clean)
        ),
        clean,
    )


def _prefixes_every_line(pattern: re.Pattern[str], text: str) -> bool:
    lines = [line for line in text.split("\n") if line.strip()]
    return len(lines) > 1 and all(pattern.match(line) for line in lines)


def gpu_index(label: str) -> int | None:
    """Return the index in a GPU label: 3 for `GPU3`.

    Return None for a NIC or a slice of a GPU (MIG).
    """
    found = _GPU.fullmatch(label)
    return int(found[1]) if found else None


def read_matrix(text: str) -> Matrix | None:
    """Return the first matrix in a text; None if there is none."""
    lines = text.split("\n")
    if re.search(r"\sNV\d*$", lines[-1]):  # the text ends inside a row: NV1 may have been NV18
        lines[-1] = lines[-1].rsplit(None, 1)[0]
    for number, line in enumerate(lines):
        if _is_head(line):
            return _matrix(line, lines[number + 1 :])
    return None


def _is_head(line: str) -> bool:
    words = _WORD.findall(line)
    devices = [word for word in words if _LABEL.fullmatch(word)]
    if not devices or not _LABEL.fullmatch(words[0]) or any(_is_cell(word) for word in words):
        return False
    return (
        len(devices) > 1
        or any(word in AFFINITIES for word in words)
        or (line[:1].isspace() and len(words) == 1)
    )


def _is_cell(word: str) -> bool:
    return parse_link_type(word) is not None or word in PEER_ACCESS or word == "N/A"


def _matrix(head: str, below: Sequence[str]) -> Matrix | None:
    columns = tuple(
        word for word in _WORD.findall(head) if word not in AFFINITIES and _LABEL.fullmatch(word)
    )
    tails = [word for word in AFFINITIES if word in head]
    tabs = "\t" in head.strip()
    starts = [found.start() for found in _WORD.finditer(head) if found[0] in columns]
    rows: dict[str, MatrixRow] = {}
    for line in below:
        if not line.strip() or line.strip().startswith("Legend"):
            if rows:
                break
            continue
        found = _LABEL.match(line)
        if found and (
            row := _row(
                line[found.end() :], columns, tails, [start - found.end() for start in starts]
            )
        ):
            rows[found[1]] = row
    return Matrix(columns, rows, tabs) if rows else None


def _row(
    rest: str, columns: Sequence[str], tails: Sequence[str], starts: Sequence[int]
) -> MatrixRow | None:
    if rest.startswith("\t"):
        fields = [word.strip() for word in rest[1:].split("\t")]
        cells, behind = fields[: len(columns)], fields[len(columns) :]
        return MatrixRow(
            _present(columns, cells), _affinities(tails, behind), len(fields) < len(columns)
        )
    words = rest.split()
    if not words:
        return MatrixRow(cut=True)
    if len(words) >= len(columns) and not any(
        _CPUS.fullmatch(word) for word in words[: len(columns)]
    ):
        return MatrixRow(
            _present(columns, words), _affinities(tails, words[len(columns) :]), cut=False
        )
    return _row_by_position(rest, columns, tails, starts)


def _row_by_position(
    rest: str, columns: Sequence[str], tails: Sequence[str], starts: Sequence[int]
) -> MatrixRow:
    """Parse a row that has blank cells or ends early: each word belongs to the nearest column."""
    cells: dict[str, str] = {}
    behind: list[str] = []
    for found in re.finditer(r"\S+", rest):
        nearest = min(range(len(columns)), key=lambda place: abs(starts[place] - found.start()))
        if _CPUS.fullmatch(found[0]) or found.start() > starts[nearest] + _CELL_WIDTH:
            behind.append(found[0])
        else:
            cells.setdefault(columns[nearest], found[0])
    return MatrixRow(cells, _affinities(tails, behind), cut=not behind)


def _present(columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    return {column: cell for column, cell in zip(columns, cells, strict=False) if cell}


def _affinities(tails: Sequence[str], behind: Sequence[str]) -> dict[str, str]:
    """Return the columns after the matrix by name.

    Some drivers print two tabs before the last column, which leaves one blank field too many.
    """
    if len(behind) > len(tails) >= 2:
        behind = [
            *behind[: len(tails) - 1],
            next((word for word in behind[len(tails) - 1 :] if word), ""),
        ]
    return {name: word for name, word in zip(tails, behind, strict=False) if word}
