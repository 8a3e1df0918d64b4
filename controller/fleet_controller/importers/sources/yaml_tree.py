"""Reads YAML files of other tools (compose files, manifests) into plain values, with the line of
each value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.yaml.document import Document, read_document
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.key_path import KeyPath

_MOST_DOCUMENTS = 50


@dataclass(frozen=True, slots=True)
class YamlTree:
    """One YAML document. Every scalar is its text as written, and null is None. `offset` is the
    number of lines before it in the file.
    """

    document: Document
    offset: int
    lines: tuple[str, ...]

    @property
    def value(self) -> Any:
        """The whole document."""
        return self.document.value

    def line(self, path: KeyPath) -> int:
        """Return the line of the file where the text at `path` begins. For a block (`|`, `>`) this
        is the line below the sign.
        """
        place = self.document.values.get(path) or self.document.place(path)
        row = place[0]
        written = self.lines[row - 1][place[1] - 1 :] if row <= len(self.lines) else ""
        return self.offset + row + (1 if re.match(r"[|>][-+0-9]*\s*(#.*)?$", written) else 0)

    def is_folded(self, path: KeyPath) -> bool:
        """Return True for a `>` block, in which blanks replaced the line ends."""
        place = self.document.values.get(path, (1, 1))
        return place[0] <= len(self.lines) and self.lines[place[0] - 1][place[1] - 1 :].startswith(
            ">"
        )

    def argument(self, path: KeyPath, value: Any) -> SourceText:
        """Return a scalar as an argument."""
        return SourceText("" if value is None else str(value), self.line(path))


def read_trees(text: str, notes: FindingCollector) -> Iterator[YamlTree]:
    """Yield every readable document of the file, and report what is not YAML."""
    for offset, part in _documents(text):
        document = read_document(part, notes.file, lambda path: True)
        for finding in document.findings:
            if finding.code != "empty_file":
                notes.error(
                    finding.code, finding.line + offset, finding.message, finding.hint, finding.key
                )
        if document.value is not None:
            yield YamlTree(document, offset, tuple(part.split("\n")))


def _documents(text: str) -> Iterator[tuple[int, str]]:
    """Yield each document between `---` lines, with the number of lines before it."""
    lines, start = text.split("\n"), 0
    found = 0
    for number, line in enumerate([*lines, "---"]):
        if re.match(r"---(\s|$)", line) and (number == len(lines) or number > start or number == 0):
            part = "\n".join(lines[start:number])
            if part.strip():
                found += 1
                yield start, part
            start = number + 1
            if found >= _MOST_DOCUMENTS:
                return


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty mapping."""
    return value if isinstance(value, dict) else {}


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return `value` if it is a list, else an empty tuple."""
    return value if isinstance(value, tuple) else ()
