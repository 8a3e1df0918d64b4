"""Reads thousands of batch lines of one shape at once, as columns of numbers.

Two lines have the same shape if they are equal without their digits. The layout of a shape says
which number of a line belongs to which column. It is derived from the first line of the shape. It
is used only if it gives the same values for that line as the slow parser in `batch_lines.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_knowledge.server_log.parsing.batch_lines import (
    COUNTS,
    DECODE,
    LARGEST,
    PREFILL,
    RATES,
    SHARES,
    USAGES,
    BatchLine,
    read_batch,
)
from fleet_knowledge.server_log.parsing.log_lines import LogLine, Rank, read_log_lines

DIGITS = b"0123456789"
# Removed before a line is split into numbers, so that a time stamp is two numbers and not six. "T"
# stays, since it stands between a date and a time and before a rank.
_DROPPED = bytes(code for code in range(128) if chr(code).isalpha() and chr(code) != "T") + b"-:"
_NUMBERS = bytes(code if chr(code) in "0123456789." else 32 for code in range(256))
_RANK = {
    name: re.compile(rb"\[[^\]]*?\b(?:ATTN_)?" + name.encode() + rb"(\d{1,6})\b[^\]]*\]")
    for name in ("DP", "PP", "TP")
}
_CLOCK = re.compile(rb"(?<!\d)(\d\d):(\d\d):(\d\d)(?=[\].,Z+ A-Z])")
_COLUMN_NAMES = {
    DECODE: ("running", "queue", "gen_throughput", "accept_len", "accept_rate", *USAGES),
    PREFILL: ("running", "queue", "new_token", "cached_token", "input_throughput", *USAGES),
}
_KEYS = {
    name: tuple(
        re.compile(rb"(?:, |,|\] |[.,:] )" + re.escape(key.encode()) + rb": (\d[\d.]*)")
        for table in (COUNTS, SHARES, RATES)
        for key, own in table.items()
        if own == name
    )
    for table in (COUNTS, SHARES, RATES)
    for name in table.values()
}
# Numbers that rarely repeat
_UNCACHED_COLUMNS = frozenset({"gen_throughput", "input_throughput"})
_NUMBER_CACHE_MAX = 32_768


class _NumberCache(dict[bytes, float]):
    """Maps the text of a number to its float, and parses each text only once. Raises ValueError for
    a text that is not a number and for a number of 1e15 or more.
    """

    def __missing__(self, token: bytes) -> float:
        value = float(token)
        if value >= LARGEST:
            raise ValueError(token)
        self[token] = value
        return value


_NUMBER_CACHE = _NumberCache()


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """Holds batch lines of one rank as columns of equal length.

    `line_indices` are positions (from 0) among all batch lines of the log. `clock` holds times as
    `HHMMSS`, possibly with a fraction. It is empty if the lines have no time stamps.
    """

    kind: str
    rank: Rank
    source: str
    graph: bool | None
    graph_kind: str
    role: str
    line_indices: Sequence[int]
    clock: Sequence[bytes]
    columns: Mapping[str, Sequence[float]]

    def second_of_day(self, index: int) -> float | None:
        """Return the second of the day at which a line was written, or None if the lines have no
        time stamps.
        """
        if not self.clock:
            return None
        time = self.clock[index]
        return int(time[:2]) * 3600 + int(time[2:4]) * 60 + float(time[4:])

    def select(self, picks: Sequence[int], rank: Rank) -> BatchColumns:
        """Return the rows at these positions, under this rank."""
        columns = {name: [column[i] for i in picks] for name, column in self.columns.items()}
        clock = [self.clock[i] for i in picks] if self.clock else []
        return replace(
            self,
            rank=rank,
            line_indices=[self.line_indices[i] for i in picks],
            clock=clock,
            columns=columns,
        )


@dataclass(slots=True)
class BatchLineLayout:
    """Holds the layout of one shape, and the lines of the shape that wait to be read.

    `width` is the count of numbers in a line. `columns` maps the name of each column to the
    position of its number. `rank_columns` (DP, PP, TP) and `clock_column` are also positions; -1
    means that the line has no such number.
    """

    kind: str
    source: str
    graph: bool | None
    graph_kind: str
    role: str
    width: int
    columns: Mapping[str, int]
    rank_columns: tuple[int, ...]
    clock_column: int
    raws: list[bytes] = field(default_factory=list)
    line_indices: list[int] = field(default_factory=list)

    def drain_columns(self) -> list[BatchColumns]:
        """Return the waiting lines as columns and forget the lines. Each entry holds lines of one
        rank.
        """
        raws, at = self.raws, self.line_indices
        self.raws, self.line_indices = [], []
        tokens = b"\n".join(raws).translate(_NUMBERS, _DROPPED).split()
        try:
            if len(tokens) != self.width * len(raws):
                raise ValueError
            return self._split(tokens, at)
        except ValueError:  # a token is not a number, or too large
            return [
                rows
                for raw, place in zip(raws, at, strict=True)
                for rows in read_columns_slowly(raw, place)
            ]

    def _split(self, tokens: list[bytes], at: list[int]) -> list[BatchColumns]:
        width = self.width
        if len(_NUMBER_CACHE) > _NUMBER_CACHE_MAX:
            _NUMBER_CACHE.clear()
        columns = {
            name: list(
                map(
                    float if name in _UNCACHED_COLUMNS else _NUMBER_CACHE.__getitem__,
                    tokens[place::width],
                )
            )
            for name, place in self.columns.items()
        }
        if any(max(columns[name]) >= LARGEST for name in _UNCACHED_COLUMNS if name in columns):
            raise ValueError
        clock = tokens[self.clock_column :: width] if self.clock_column >= 0 else []
        labels = [
            tokens[place::width] if place >= 0 else [b"-1"] * len(at) for place in self.rank_columns
        ]
        rows = BatchColumns(
            self.kind,
            Rank(),
            self.source,
            self.graph,
            self.graph_kind,
            self.role,
            at,
            clock,
            merge_usage_columns(columns),
        )
        if all(label.count(label[0]) == len(label) for label in labels):
            return [replace(rows, rank=Rank(*(int(label[0]) for label in labels)))]
        picks: dict[tuple[bytes, ...], list[int]] = {}
        for index, rank in enumerate(zip(*labels, strict=True)):
            picks.setdefault(rank, []).append(index)
        return [rows.select(indices, Rank(*map(int, rank))) for rank, indices in picks.items()]


def detect_layout(raw: bytes) -> BatchLineLayout | None:
    """Return the layout of a physical line that consists of exactly one batch line.

    Return None for any other line, and if the layout would give other values than the slow parser.
    """
    lines = list(read_log_lines(raw))
    batch = read_batch(lines[0]) if len(lines) == 1 else None
    if batch is None:
        return None
    tokens = raw.translate(_NUMBERS, _DROPPED).split()
    places = _number_columns(raw, batch, tokens)
    ranks = tuple(
        _count_numbers_before(raw, found.start(1)) if (found := _RANK[name].search(raw)) else -1
        for name in ("DP", "PP", "TP")
    )
    own = batch.rank or Rank()
    found_rank = [_float(tokens[place]) if place >= 0 else -1 for place in ranks]
    clock = _CLOCK.search(raw)
    clock_column = _count_numbers_before(raw, clock.start(1)) if clock else -1
    if (
        places is None
        or found_rank != [own.dp, own.pp, own.tp]
        or (clock and tokens[clock_column].partition(b".")[0] != b"".join(clock.groups()))
    ):
        return None
    return BatchLineLayout(
        batch.kind,
        lines[0].source,
        batch.graph,
        batch.graph_kind,
        batch.role,
        len(tokens),
        places,
        ranks,
        clock_column,
    )


def read_columns_slowly(raw: bytes, place: int) -> Iterator[BatchColumns]:
    """Yield the batch lines in a physical line, each as columns with one row. The slow parser reads
    one message after the other.
    """
    for line in read_log_lines(raw):
        if batch := read_batch(line):
            yield columns_from_batch(batch, line, place)


def columns_from_batch(batch: BatchLine, line: LogLine, place: int) -> BatchColumns:
    """Return one batch line as columns with one row."""
    columns = {
        name: [float(batch.values[name])]
        for name in _COLUMN_NAMES[batch.kind]
        if name in batch.values
    }
    clock = re.fullmatch(r"(?:\S+ )?(\d\d:\d\d:\d\d(?:\.\d+)?)", line.stamp, re.ASCII)
    times = [clock[1].replace(":", "").encode()] if clock else []
    return BatchColumns(
        batch.kind,
        batch.rank or Rank(),
        line.source,
        batch.graph,
        batch.graph_kind,
        batch.role,
        [place],
        times,
        merge_usage_columns(columns),
    )


def merge_usage_columns(columns: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    """Return the columns with one column `token_usage` in place of the usage of each memory pool.
    In each row, the fullest pool counts.
    """
    usages = [columns[name] for name in USAGES if name in columns]
    kept = {name: column for name, column in columns.items() if name not in USAGES}
    return (
        {**kept, "token_usage": list(map(max, *usages)) if len(usages) > 1 else usages[0]}
        if usages
        else kept
    )


def _number_columns(raw: bytes, batch: BatchLine, tokens: list[bytes]) -> dict[str, int] | None:
    places: dict[str, int] = {}
    for name in _COLUMN_NAMES[batch.kind]:
        found = [match for key in _KEYS[name] for match in key.finditer(raw)]
        if not found and (name not in batch.values or name == "token_usage"):
            continue  # token_usage may be derived from other pools
        place = _count_numbers_before(raw, found[0].start(1)) if len(found) == 1 else len(tokens)
        if place >= len(tokens) or (
            name not in USAGES and _float(tokens[place]) != batch.values.get(name)
        ):
            return None
        places[name] = place
    return places


def _count_numbers_before(raw: bytes, offset: int) -> int:
    """Return how many numbers the line has before this offset."""
    return len(raw[:offset].translate(_NUMBERS, _DROPPED).split())


def _float(token: bytes) -> float | None:
    try:
        return float(token)
    except ValueError:
        return None
