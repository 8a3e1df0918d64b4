"""Parses the output of `sglang.test.send_one`, which prints lines (0.4.2 - 0.5.3) or a table (from
0.5.4 on).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

_PAIR = re.compile(
    (
        r"^[ \t]*acc_length=([\d.]{1,20}|nan)[ \t\r]*(?:\n[ \t]*speed=([\d.]{1,20}) *tok\w*/s[ "
        r"\t\r]*)?$"
    ),
    re.MULTILINE,
)
_ROW = re.compile(r"^\s*\|((?:\s*[\d.]+\s*\|){2,})\s*$")
_HEAD = re.compile(r"^\s*\|(.*Acc Length.*)\|\s*$", re.IGNORECASE)
_COLUMNS = {
    "latency (s)": "latency_s",
    "tokens": "tokens",
    "acc length": "accept_len",
    "speed (token/s)": "tok_s",
}
NO_SPECULATION = "1.00 is also printed for a server without speculation: check the job's arguments"


@dataclass(frozen=True, slots=True)
class SendOneResult:
    """Holds the result of one request, in seconds and tokens per second. A value is None if it was
    not printed.
    """

    accept_len: float | None = None
    tok_s: float | None = None
    latency_s: float | None = None
    tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what was printed, with a note if the accept length is 1.00."""
        printed = {name: value for name, value in asdict(self).items() if value is not None}
        return {**printed, "note": NO_SPECULATION} if self.accept_len == 1.0 else printed

    def accept_length(self, *, speculation: bool) -> float | None:
        """Return the accept length, or None if the job does not use speculation."""
        return self.accept_len if speculation else None


def read_send_one_results(text: str) -> tuple[SendOneResult, ...]:
    """Return every result in the text. Return an empty tuple for other text. Never raises."""
    return (*_pairs(text), *_tables(text))


def _pairs(text: str) -> Iterator[SendOneResult]:
    for found in _PAIR.finditer(text):
        yield SendOneResult(_number(found[1]), _number(found[2] or ""))


def _tables(text: str) -> Iterator[SendOneResult]:
    columns: list[str] = []
    for line in filter(lambda line: len(line) < 400, text.splitlines()):
        head, row = _HEAD.match(line), _ROW.match(line)
        if head:
            columns = [_COLUMNS.get(name.strip().lower(), "") for name in head[1].split("|")]
        elif row and columns:
            cells = dict(zip(columns, map(_number, row[1].split("|")), strict=False))
            tokens = cells.get("tokens")
            yield SendOneResult(
                cells.get("accept_len"),
                cells.get("tok_s"),
                cells.get("latency_s"),
                round(tokens) if tokens is not None else None,
            )
        elif line.strip() and not line.lstrip().startswith(("+", "|")):
            columns = []


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
