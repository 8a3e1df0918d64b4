"""Sums up batch lines: first for each rank, then over DP ranks, never over TP ranks or pipeline
stages.

Each DP rank prints lines about itself only, at its own times. So the mean over the log is computed
for each rank first. The sum of these means over the DP ranks is the rate of the server. The ranks
of one TP group and the stages of a pipeline report the same tokens.

A decode line divides its tokens by the time since the previous line. In the first line after idle
time, that time includes the idle time. So the rate of this line is left out; its accept length is
kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_knowledge.server_log.diagnosis.logged_accept_length import AcceptLengthStats
from fleet_knowledge.server_log.parsing.batch_columns import BatchColumns
from fleet_knowledge.server_log.parsing.batch_lines import DECODE
from fleet_knowledge.server_log.parsing.log_lines import Rank

_MAX_RANKS = 4096
_SHOWN_DROPS = 8
# The largest values in the prefill line of a health check
_HEALTH_CHECK_MAX = (("new_token", 8), ("cached_token", 8), ("running", 0))
_GAP_S = 5.0  # a busy rank writes more often
_DAY_S = 86400.0


@dataclass(slots=True)
class RunningSum:
    """Holds the count, sum, maximum and last value of a series of numbers."""

    count: int = 0
    total: float = 0.0
    maximum: float = float("-inf")
    last: float = 0.0

    def add(self, values: Sequence[float]) -> None:
        """Add a column of values."""
        if values:
            self.count += len(values)
            self.total += sum(values)
            self.maximum, self.last = max(self.maximum, max(values)), values[-1]

    @property
    def mean(self) -> float | None:
        """Return the mean, or None if there are no values."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class RankRates:
    """Holds sums over the batch lines of one rank. The log lines of the rank have one source: a
    container, pod or process.
    """

    decode_lines: int = 0
    prefill_lines: int = 0
    throughput: RunningSum = field(default_factory=RunningSum)
    rate_sum: float = 0.0  # over all lines, also those after idle time
    running_sum: float = 0.0
    running: RunningSum = field(default_factory=RunningSum)
    queue_max: float | None = None
    usage_max: float | None = None
    input_throughput: RunningSum = field(default_factory=RunningSum)
    new_tokens: float = 0.0
    cached_tokens: float = 0.0
    idle: bool = False  # the interval of the next decode line began while idle
    # position, rate and running requests of a first line, until the next line decides about it
    undecided_first: tuple[int, float, float] | None = None
    last_s: float | None = None


@dataclass(slots=True)
class LoggedRates:
    """Holds sums over the batch lines of all ranks of a log."""

    ranks: dict[tuple[str, Rank], RankRates] = field(default_factory=dict)
    acceptance: AcceptLengthStats = field(default_factory=AcceptLengthStats)
    graphs: dict[tuple[str, bool], int] = field(default_factory=dict)
    smallest_without_graph: float | None = None  # the smallest batch that ran without a graph
    largest_with_graph: float | None = None  # the largest that ran with one
    dropped: int = 0
    drops: list[dict[str, Any]] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)
    real_work: bool = False  # more than the single token of a health check

    def add(self, pieces: Sequence[BatchColumns]) -> None:
        """Add the batch lines that were read since the last call. Their order does not matter."""
        grouped: dict[tuple[str, Rank], list[BatchColumns]] = {}
        for rows in pieces:
            grouped.setdefault((rows.source, rows.rank), []).append(rows)
        for key in sorted(grouped):
            if key not in self.ranks and len(self.ranks) >= _MAX_RANKS:
                continue
            rank = self.ranks.setdefault(key, RankRates())
            decodes = sorted(
                (rows for rows in grouped[key] if rows.kind == DECODE),
                key=lambda rows: rows.line_indices[0],
            )
            prefills = sorted(
                (rows for rows in grouped[key] if rows.kind != DECODE),
                key=lambda rows: rows.line_indices[0],
            )
            self._add_prefills(rank, prefills)
            starts = sorted(at for rows in prefills for at in _idle_starts(rows))
            self._add_decodes(rank, decodes, starts)

    def drop_source(self, source: str) -> int:
        """Forget the batch lines of one source, such as the lines of a server's warm-up. Return how
        many lines were forgotten.
        """
        gone = [key for key in self.ranks if key[0] == source]
        lines = sum(self.ranks[key].decode_lines + self.ranks[key].prefill_lines for key in gone)
        for key in gone:
            del self.ranks[key]
        if not self.ranks:
            self.acceptance, self.graphs, self.smallest_without_graph, self.largest_with_graph = (
                AcceptLengthStats(),
                {},
                None,
                None,
            )
            self.dropped, self.drops, self.roles, self.real_work = 0, [], set(), False
        return lines

    def finish(self) -> None:
        """Count each first decode line that still waits for a next line to be compared with."""
        for rank in self.ranks.values():
            if rank.undecided_first:
                rank.throughput.add([rank.undecided_first[1]])
                rank.undecided_first = None

    def _add_prefills(self, rank: RankRates, pieces: Sequence[BatchColumns]) -> None:
        for rows in pieces:
            columns = rows.columns
            rank.prefill_lines += len(rows.line_indices)
            rank.new_tokens += sum(columns.get("new_token", ()))
            rank.cached_tokens += sum(columns.get("cached_token", ()))
            rank.input_throughput.add(columns.get("input_throughput", ()))
            rank.queue_max = _max_of(rank.queue_max, columns.get("queue"))
            rank.usage_max = _max_of(rank.usage_max, columns.get("token_usage"))
            self.roles.add(rows.role)
            self.real_work = self.real_work or any(
                max(columns.get(name, (0,))) > most for name, most in _HEALTH_CHECK_MAX
            )

    def _add_decodes(
        self, rank: RankRates, pieces: Sequence[BatchColumns], starts: list[int]
    ) -> None:
        for rows in pieces:
            columns = rows.columns
            rank.running.add(columns.get("running", ()))
            rank.queue_max = _max_of(rank.queue_max, columns.get("queue"))
            rank.usage_max = _max_of(rank.usage_max, columns.get("token_usage"))
            self.roles.add(rows.role)
            self.acceptance.add(columns.get("accept_len", ()), columns.get("accept_rate", ()))
            self._add_graphs(rows)
            self.real_work = True
        timed = [rows for rows in pieces if "gen_throughput" in rows.columns]
        if rank.prefill_lines:
            self._add_after_prefills(rank, timed, starts)
        elif timed:
            self._add_decodes_without_prefills(rank, _merge_in_log_order(timed))
        rank.decode_lines += sum(len(rows.line_indices) for rows in pieces)

    def _add_graphs(self, rows: BatchColumns) -> None:
        if rows.graph is None:
            return
        key = (rows.graph_kind, rows.graph)
        self.graphs[key] = self.graphs.get(key, 0) + len(rows.line_indices)
        running = rows.columns.get("running", ())
        if running and rows.graph:
            self.largest_with_graph = (
                max(running)
                if self.largest_with_graph is None
                else max(self.largest_with_graph, max(running))
            )
        elif running:
            self.smallest_without_graph = (
                min(running)
                if self.smallest_without_graph is None
                else min(self.smallest_without_graph, min(running))
            )

    def _add_after_prefills(
        self, rank: RankRates, pieces: Sequence[BatchColumns], starts: list[int]
    ) -> None:
        """Add the decode lines of a rank that also prints prefill lines.

        Prefill lines show when the rank was idle. After a prefill line that reports no running
        requests, the rate of the first decode line is left out.
        """
        starts = [-1, *starts] if rank.idle else starts
        idle: set[int] = set()
        rank.idle = False
        for start in starts:
            after = [
                rows.line_indices[index]
                for rows in pieces
                if (index := bisect_left(rows.line_indices, start)) < len(rows.line_indices)
            ]
            idle |= {min(after)} if after else set()
            rank.idle = not after
        for rows in pieces:
            rates = rows.columns["gen_throughput"]
            gone = (
                {index for index, at in enumerate(rows.line_indices) if at in idle}
                if idle
                else set()
            )
            self._drop(gone, rows)
            rank.throughput.add(
                [rate for index, rate in enumerate(rates) if index not in gone] if gone else rates
            )

    def _add_decodes_without_prefills(self, rank: RankRates, rows: BatchColumns) -> None:
        """Add decode lines of a rank without prefill lines. The rank belongs to the decode server
        of a disaggregated pair, or the log is cut.

        Idle time is inferred from a gap between two lines and from the rate after the gap.
        """
        rates = rows.columns["gen_throughput"]
        running = rows.columns.get("running", [1.0] * len(rates))
        gone = _lines_after_idle(rank, rows, rates, running)
        held = rank.undecided_first is None and not rank.decode_lines and len(rates) == 1
        if held:
            rank.undecided_first, gone = (rows.line_indices[0], rates[0], running[0]), set()
        else:
            gone |= self._judge_first(rank, rates, running)
        self._drop(gone, rows)
        kept = [rate for index, rate in enumerate(rates) if index not in gone] if gone else rates
        rank.throughput.add([] if held else kept)
        rank.last_s = rows.second_of_day(len(rates) - 1)

    def _judge_first(
        self, rank: RankRates, rates: Sequence[float], running: Sequence[float]
    ) -> set[int]:
        """Return {0} if the first of these lines is the rank's first line and covers idle time
        before the log. Otherwise return an empty set.

        A line covers idle time if its rate is much lower than the rate of the next line. A first
        line that was held back for this comparison is added or dropped here.
        """
        if rank.undecided_first is None:
            slower = not rank.decode_lines and _much_slower(
                (rates[0], running[0]), (rates[1], running[1])
            )
            return {0} if slower else set()
        place, rate, first_running = rank.undecided_first
        rank.undecided_first = None
        if _much_slower((rate, first_running), (rates[0], running[0])):
            self._record_drop(place, rate)
        else:
            rank.throughput.add([rate])
        return set()

    def _drop(self, gone: set[int], rows: BatchColumns) -> None:
        for index in sorted(gone):
            self._record_drop(rows.line_indices[index], rows.columns["gen_throughput"][index])

    def _record_drop(self, place: int, rate: float) -> None:
        self.dropped += 1
        if len(self.drops) < _SHOWN_DROPS:
            self.drops.append(
                {"line": place + 1, "gen_throughput": rate, "reason": "interval began while idle"}
            )


def _max_of(most: float | None, values: Sequence[float] | None) -> float | None:
    if not values:
        return most
    return max(values) if most is None else max(most, max(values))


def _idle_starts(rows: BatchColumns) -> list[int]:
    """Return the positions of prefill lines that report no running requests."""
    running = rows.columns.get("running")
    if running is None or 0.0 not in running:
        return []
    return [at for at, count in zip(rows.line_indices, running, strict=True) if count == 0]


def _merge_in_log_order(pieces: Sequence[BatchColumns]) -> BatchColumns:
    """Merge pieces of several shapes into one piece, in log order. Of several pieces, only the
    columns that show idle time are kept.
    """
    if len(pieces) == 1:
        return pieces[0]
    names = [
        name
        for name in ("gen_throughput", "running")
        if all(name in rows.columns for rows in pieces)
    ]
    timed = all(rows.clock for rows in pieces)
    order = sorted(
        (at, piece, index)
        for piece, rows in enumerate(pieces)
        for index, at in enumerate(rows.line_indices)
    )
    columns: Mapping[str, Sequence[float]] = {
        name: [pieces[piece].columns[name][index] for _, piece, index in order] for name in names
    }
    clock = [pieces[piece].clock[index] for _, piece, index in order] if timed else []
    return replace(pieces[0], line_indices=[at for at, _, _ in order], clock=clock, columns=columns)


def _lines_after_idle(
    rank: RankRates, rows: BatchColumns, rates: Sequence[float], running: Sequence[float]
) -> set[int]:
    """Return the positions of the lines that come after a gap and are slow.

    A line is slow if its rate per running request is below a quarter of the mean so far.
    """
    rank.rate_sum += sum(rates)
    rank.running_sum += sum(running)
    usual = rank.rate_sum / rank.running_sum / 4 if rank.running_sum else 0.0
    found = set()
    for index in [
        index
        for index, (rate, count) in enumerate(zip(rates, running, strict=True))
        if rate < usual * count
    ]:
        before_s = rows.second_of_day(index - 1) if index else rank.last_s
        now_s = rows.second_of_day(index)
        if before_s is not None and now_s is not None and (now_s - before_s) % _DAY_S >= _GAP_S:
            found.add(index)
    return found


def _much_slower(line: tuple[float, float], neighbour: tuple[float, float]) -> bool:
    """Return whether the rate per running request is less than half of that in the next line."""
    return line[0] / max(line[1], 1.0) < 0.5 * neighbour[0] / max(neighbour[1], 1.0)
