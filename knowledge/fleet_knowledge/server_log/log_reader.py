"""Reads a server log from chunks of bytes, in constant memory.

The shape of a line is the line without its digits. Most lines of a long log have one of a few
shapes. The messages of the first line of a shape are read one by one. They show how to treat all
later lines of that shape: skip them, count them, read them as columns of numbers, or read them one
by one too. If a log has very many shapes, a filter first selects the lines that one of our patterns
may match. The result depends only on the sequence of lines, not on how the bytes were cut into
chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from fleet_knowledge.server_log.diagnosis.accumulator import LogAccumulator
from fleet_knowledge.server_log.diagnosis.conclusion import conclude_diagnosis
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis
from fleet_knowledge.server_log.line_filter import LineFilter, is_bulk_line, load_line_filter
from fleet_knowledge.server_log.line_shapes import (
    NCCL_LINE,
    NUMBERS_MATTER,
    READ_EACH_LINE,
    SKIP,
    Action,
    AnsweredRequest,
    NcclLine,
    ProgressBar,
    ReadEachLine,
    action_for_shape,
    nccl_call_without_ids,
    without_ids,
)
from fleet_knowledge.server_log.parsing.batch_columns import (
    DIGITS,
    BatchColumns,
    BatchLineLayout,
    columns_from_batch,
)
from fleet_knowledge.server_log.parsing.batch_lines import read_batch
from fleet_knowledge.server_log.parsing.log_lines import read_log_lines

_LONGEST_LINE = 64 * 1024  # bytes; a longer line prints data, and the rest of it is skipped
_LONGEST_SHAPE = 1024
_BLOCK = _LONGEST_LINE  # so no line inside a block is too long
_MAX_SHAPES = 8192
_MAX_BUFFERED_BATCHES = 4096  # batch lines that are read together
_MAX_BUFFERED_NCCL = 4096  # different lines
_FILTER_FROM = 2048  # shapes; a log with more of them is filtered
_MAX_RELEVANT_PER_SHAPE = 64  # relevant lines of one shape; more of them add nothing
_NCCL = re.compile(rb"N?CCL|^(?:HIP|ROCm) version|^Hostname +:|^Librccl")


@dataclass(slots=True)
class LogReader:
    """Reads one log from its chunks, in order. No bytes make it raise an exception."""

    _filter_from: int = _FILTER_FROM
    _load_filter: Callable[[], LineFilter | None] = load_line_filter
    _filter: LineFilter | None = None
    _accumulator: LogAccumulator = field(default_factory=LogAccumulator)
    _partial_line: list[bytes] = field(default_factory=list)
    _partial_bytes: int = 0
    _actions: dict[bytes, Action] = field(default_factory=dict)
    _relevant_counts: dict[bytes, int] = field(default_factory=dict)
    _layouts: list[BatchLineLayout] = field(default_factory=list)
    _irregular_columns: list[BatchColumns] = field(default_factory=list)
    _batches: int = 0  # batch lines so far
    _flushed_batches: int = 0  # the ones of them that the accumulator has
    _bars: list[ProgressBar] = field(default_factory=list)
    _bar_count: int = 0
    _nccl_counts: dict[bytes, int] = field(default_factory=dict)
    _generation: int = 0  # how often the actions were cleared or a filter was loaded
    _new_shapes: int = 0  # lines of unknown shape so far

    @property
    def phase(self) -> str:
        """Return the phase that the launch has reached; empty before the first line of a launch."""
        self._flush_progress_bars()
        return self._accumulator.launch.phase

    @property
    def progress(self) -> tuple[int, int]:
        """Return (done, total) steps of the launch phase, such as loaded weight shards. Return (0,
        0) for a phase without a progress bar.
        """
        self._flush_progress_bars()
        return self._accumulator.launch.progress

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the log."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")  # each update of a progress bar is a line
        for start in range(0, len(chunk), _BLOCK):
            self._feed_block(chunk[start : start + _BLOCK])

    def finish(self) -> Diagnosis:
        """Return the diagnosis of everything fed so far, including an unfinished last line. More
        chunks may be fed afterwards.
        """
        self._process_lines(b"".join(self._partial_line))
        self._partial_line, self._partial_bytes = [], 0
        self._flush()
        self._flush_nccl()
        return conclude_diagnosis(self._accumulator)

    def _feed_block(self, block: bytes) -> None:
        end = block.rfind(b"\n")
        if end < 0:
            self._keep(block)
            return
        first = block.find(b"\n")
        self._keep(block[:first])
        self._process_lines(b"".join(self._partial_line) + block[first:end])
        self._partial_line, self._partial_bytes = [], 0
        self._keep(block[end + 1 :])

    def _keep(self, part: bytes) -> None:
        part = part[: _LONGEST_LINE - self._partial_bytes]
        if part:
            self._partial_line.append(part)
            self._partial_bytes += len(part)

    def _process_lines(self, block: bytes) -> None:
        """Process complete lines in one or more rounds. A round ends early when the filter is
        loaded or the actions are cleared.
        """
        lines: Sequence[bytes] = [block]
        while lines:
            text, relevant = b"\n".join(lines), None
            if self._filter:
                lines, relevant = self._filter.select(text)
                text = b"\n".join(lines)
            else:
                lines = text.split(b"\n")
            lines = self._process_by_shape(lines, text.translate(None, DIGITS), relevant)

    def _process_by_shape(
        self, lines: Sequence[bytes], shapes: bytes, relevant: Collection[bytes] | None
    ) -> Sequence[bytes]:
        """Process each line by the action of its shape. Return the lines that must be processed in
        another round.

        Such lines exist only if the filter was loaded or the actions were cleared, because either
        changes how the later lines are treated.
        """
        counted, limit, generation = (
            self._batches,
            self._flushed_batches + _MAX_BUFFERED_BATCHES,
            self._generation,
        )
        layout, nccl_line, nccl_counts = BatchLineLayout, NCCL_LINE, self._nccl_counts
        pairs = zip(lines, map(self._actions.get, shapes.split(b"\n")), strict=False)
        for raw, action in pairs:
            if action is SKIP:
                continue
            if action.__class__ is layout:
                action.raws.append(raw)
                action.line_indices.append(counted)
                counted += 1
                if counted < limit:
                    continue
                self._batches = counted
                self._flush()
            elif action is nccl_line and raw in nccl_counts:
                nccl_counts[raw] += 1
                continue
            else:
                self._batches = counted
                if relevant is None or raw in relevant or is_bulk_line(raw):
                    self._process_line(action, raw)
            if generation != self._generation:
                return [raw for raw, _ in pairs]
            counted, limit = self._batches, self._flushed_batches + _MAX_BUFFERED_BATCHES
        self._batches = counted
        return []

    def _process_line(self, action: Action | None, raw: bytes) -> None:
        if action is None or action is READ_EACH_LINE:
            self._read_new_shape(raw)
        else:
            self._apply_action(action, raw)

    def _apply_action(self, action: Action | None, raw: bytes) -> None:
        if isinstance(action, AnsweredRequest):
            self._accumulator.add_answered_request(action.healthy, action.failed)
        elif isinstance(action, NcclLine):
            self._nccl_counts[raw] = self._nccl_counts.get(raw, 0) + 1
            if len(self._nccl_counts) >= _MAX_BUFFERED_NCCL:
                self._flush_nccl()
        elif isinstance(action, ProgressBar):
            if not action.raw:
                self._bars.append(action)
            self._bar_count += 1
            action.raw, action.order = raw, self._bar_count
        elif isinstance(action, BatchLineLayout):
            action.raws.append(raw)
            action.line_indices.append(self._batches)
            self._batches += 1

    def _read_new_shape(self, raw: bytes) -> None:
        """Read a line that has an unknown shape, or that has messages which must be read one by
        one.
        """
        call = nccl_call_without_ids(raw) if b"opCount" in raw else None
        if call is not None and call in self._nccl_counts:
            self._nccl_counts[call] += 1
            return
        raw, shape = without_ids(raw)
        action = self._actions.get(shape)
        if action is None:
            self._count_new_shape()
            action = action_for_shape(raw)
            if isinstance(action, BatchLineLayout):
                self._layouts.append(action)
            if action is not None and len(shape) <= _LONGEST_SHAPE:
                self._actions[shape] = action
        if action is None or isinstance(action, ReadEachLine):
            self._read_each_line(raw, shape)
        else:
            self._apply_action(action, raw)

    def _count_new_shape(self) -> None:
        self._new_shapes += 1
        if self._new_shapes == self._filter_from:
            self._filter = self._load_filter()
            self._generation += 1
        if len(self._actions) >= _MAX_SHAPES:
            self._flush()
            self._layouts = []
            self._generation += 1
            self._actions.clear()
            self._relevant_counts.clear()

    def _read_each_line(self, raw: bytes, shape: bytes) -> None:
        """Read the messages of a line. Decide whether later lines of its shape must be read too."""
        is_relevant, numbers_matter = self._read_messages(raw), bool(NUMBERS_MATTER.search(raw))
        if len(shape) > _LONGEST_SHAPE:
            return
        if shape not in self._actions:
            self._actions[shape] = READ_EACH_LINE if is_relevant or numbers_matter else SKIP
        elif is_relevant:
            self._relevant_counts[shape] = count = self._relevant_counts.get(shape, 0) + 1
            if (
                count >= _MAX_RELEVANT_PER_SHAPE
                and not numbers_matter
                and not self._accumulator.is_launch_progress(raw)
            ):
                self._actions[shape] = SKIP

    def _read_messages(self, raw: bytes) -> bool:
        """Read the messages of a line. Return whether any message was relevant."""
        self._flush_progress_bars()
        is_relevant = False
        for line in read_log_lines(raw):
            if batch := read_batch(line):
                self._irregular_columns.append(columns_from_batch(batch, line, self._batches))
                self._accumulator.keep_sample(batch, self._batches)
                self._batches += 1
                is_relevant = True
                continue
            text = line.text.encode()
            if _NCCL.search(text):
                self._apply_action(NCCL_LINE, text)
            if self._accumulator.needs_flush_before(line):
                self._flush()
            self._accumulator.batches = self._batches
            is_relevant = self._accumulator.add_message(line) or is_relevant
        return is_relevant

    def _flush_progress_bars(self) -> None:
        bars, self._bars = sorted(self._bars, key=lambda bar: bar.order), []
        for bar in bars:
            raw, bar.raw = bar.raw, b""
            for line in read_log_lines(raw):
                self._accumulator.add_message(line)

    def _flush(self) -> None:
        """Pass the buffered batch lines to the accumulator."""
        self._flush_progress_bars()
        pieces, self._irregular_columns = self._irregular_columns, []
        for layout in self._layouts:
            if layout.raws:
                self._accumulator.keep_raw_samples(layout.raws, layout.line_indices)
                pieces += layout.drain_columns()
        self._flushed_batches = self._accumulator.batches = self._batches
        self._accumulator.add_batches(pieces)

    def _flush_nccl(self) -> None:
        waiting = list(self._nccl_counts.items())
        self._nccl_counts.clear()
        for raw, times in waiting:
            for line in read_log_lines(raw):
                self._accumulator.add_nccl_line(line, times)
