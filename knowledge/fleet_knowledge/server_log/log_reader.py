"""Owns the reading of a server's log from chunks of bytes in constant memory: each shape of line is
understood once. Does no I/O.

Most lines of a long log repeat a few shapes (a line without its digits). The first line of a shape
is read word by word; what it turned out to be decides how all later ones are treated: passed over,
counted, read as columns of numbers, or looked at again. The result depends on the sequence of lines
alone, never on how the bytes were cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_knowledge.server_log.diagnosis.accumulator import LogAccumulator
from fleet_knowledge.server_log.diagnosis.conclusion import conclude_diagnosis
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis
from fleet_knowledge.server_log.parsing.batch_columns import (
    DIGITS,
    BatchColumns,
    BatchLineLayout,
    columns_from_batch,
    detect_layout,
)
from fleet_knowledge.server_log.parsing.batch_lines import read_batch
from fleet_knowledge.server_log.parsing.log_lines import LogLine, read_log_lines
from fleet_knowledge.server_log.symptoms.prefilter import select_lines

_LONGEST_LINE = 64 * 1024  # bytes; what is longer prints data, and its rest is passed over
_LONGEST_SHAPE = 1024
_BLOCK = _LONGEST_LINE  # so a line within one is never too long
_MAX_SHAPES = 8192
_MAX_BUFFERED_BATCHES = 4096  # batch lines, read together
_MAX_BUFFERED_NCCL = 4096  # different lines
# shapes: a log with more has lines that are all unlike, and from there on only those with a telling
# word are read
_PREFILTER_FROM = 2048
_MAX_RELEVANT_PER_SHAPE = (
    64  # at lines of one shape that tell of trouble: the next ones tell nothing new
)
_NUMBERS_MATTER = re.compile(
    rb"[Ee]rror \d|[Ee]rror: \d|exit(?:ed)?\W|[Ee]xit code|[Xx]id|rc=|signal|timeout|status"
)
_BAR = re.compile(rb"%\|| Completed \|")
_NCCL = re.compile(rb"N?CCL|^(?:HIP|ROCm) version|^Hostname +:|^Librccl")
_REQUEST_LOGS = (
    b"Receive: obj=",
    b"Finish: obj=",
)  # with the texts of requests, each of a shape of its own
_HEALTH = re.compile(rb'"GET /health(?:_generate)?[^"]*" (\d\d\d)')
_ACCESS = re.compile(rb'"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS) /[^"]*" (\d\d\d) [A-Z]')
# Pointers, counters and ids: no two lines are equal with them, and nobody reads them
_CALL_IDS = re.compile(rb"(?<=opCount )[0-9a-f]+|0x[0-9a-f]+")
_IDS = re.compile(rb"[0-9a-f]{8,}")
# A call as NCCL_DEBUG_SUBSYS=COLL tells it; its groups are what is kept
_CALL = re.compile(
    rb"([^\x1b\x00{]*? NCCL INFO \w+: opCount )[0-9a-f]+( sendbuff )(?:0x)?[0-9a-f]+( recvbuff "
    rb")(?:0x)?[0-9a-f]+"
    rb"( [a-z0-9 ]{1,99} comm )0x[0-9a-f]+( \[nranks=\d+\] stream )0x[0-9a-f]+"
)


@dataclass(slots=True)
class _ProgressBar:
    """Progress bars of one shape: only the last is of interest."""

    raw: bytes = b""
    order: int = 0


@dataclass(frozen=True, slots=True)
class _AnsweredRequest:
    """Answered requests of one shape."""

    healthy: bool | None  # of a health check; None for other requests
    failed: bool


class _Skip:
    """Lines of this shape tell nothing."""


class _NcclLine:
    """Lines of this shape are for the reader of NCCL's."""


class _ReadEachLine:
    """Lines of this shape are read word by word, each."""


_SKIP: Final = _Skip()
_NCCL_LINE: Final = _NcclLine()
_READ_EACH_LINE: Final = _ReadEachLine()
_Action = BatchLineLayout | _ProgressBar | _AnsweredRequest | _Skip | _NcclLine | _ReadEachLine


@dataclass(slots=True)
class LogReader:
    """Feed it a log in any pieces, in order; `finish` tells what it comes to. Never raises,
    whatever the bytes.
    """

    _accumulator: LogAccumulator = field(default_factory=LogAccumulator)
    _partial_line: list[bytes] = field(default_factory=list)
    _partial_bytes: int = 0
    _actions: dict[bytes, _Action] = field(default_factory=dict)
    _relevant_counts: dict[bytes, int] = field(default_factory=dict)
    _layouts: list[BatchLineLayout] = field(default_factory=list)
    _irregular_columns: list[BatchColumns] = field(default_factory=list)
    _batches: int = 0
    _flushed_batches: int = 0  # batch lines read, of those numbered by _batches
    _bars: list[_ProgressBar] = field(default_factory=list)
    _nccl_counts: dict[bytes, int] = field(default_factory=dict)
    _bar_count: int = 0
    _generation: int = 0  # of the actions: how often they were forgotten
    _shape_count: int = 0  # shapes so far
    _seen_once: set[int] = field(
        default_factory=set
    )  # hashes of shapes that the sieve has passed over
    _prefilter_from: int = _PREFILTER_FROM

    @property
    def phase(self) -> str:
        """The phase that the launch is in, empty before its first line."""
        self._flush_progress_bars()
        return self._accumulator.launch.phase

    @property
    def progress(self) -> tuple[int, int]:
        """(done, total) of that phase; (0, 0) where it counts nothing."""
        self._flush_progress_bars()
        return self._accumulator.launch.progress

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the log."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")  # progress bars: each update is a line
        for start in range(0, len(chunk), _BLOCK):
            self._feed_block(chunk[start : start + _BLOCK])

    def finish(self) -> Diagnosis:
        """What the log comes to so far; a last line without its end counts. More may be fed
        afterwards.
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
        """Whole lines."""
        lines, shapes = block.split(b"\n"), block.translate(None, DIGITS).split(b"\n")
        done = 0
        while done < len(lines):
            done += self._process_by_shape(lines[done:], shapes[done:])

    def _process_by_shape(self, lines: Sequence[bytes], shapes: Sequence[bytes]) -> int:
        """How many lines were taken: not all when the actions were forgotten on the way."""
        counted, limit, generation = (
            self._batches,
            self._flushed_batches + _MAX_BUFFERED_BATCHES,
            self._generation,
        )
        worth: list[set[int]] = []  # filled when first needed
        skip, again, layout, nccl_line, nccl = (
            _SKIP,
            _READ_EACH_LINE,
            BatchLineLayout,
            _NCCL_LINE,
            self._nccl_counts,
        )
        for index, action in enumerate(map(self._actions.get, shapes)):
            if action is skip or (
                action is None and self._is_skippable(index, lines, shapes, worth)
            ):
                continue
            raw = lines[index]
            if action.__class__ is layout:
                action.raws.append(raw)
                action.line_indices.append(counted)
                counted += 1
                if counted < limit:
                    continue
                self._batches = counted
                self._flush()
            elif action is nccl_line and raw in nccl:
                nccl[raw] += 1
                continue
            elif action is None or action is again:
                self._batches = counted
                self._read_new_shape(raw, shapes[index])
            else:
                self._apply_action(action, raw)
                continue
            if generation != self._generation:
                return index + 1
            counted, limit = self._batches, self._flushed_batches + _MAX_BUFFERED_BATCHES
        self._batches = counted
        return len(lines)

    def _is_skippable(
        self, index: int, lines: Sequence[bytes], shapes: Sequence[bytes], worth: list[set[int]]
    ) -> bool:
        """Whether the sieve passes over a line of unknown shape; the first shapes of a log are all
        read.
        """
        if self._shape_count < self._prefilter_from:
            self._shape_count += 1
            return False
        if not worth:
            worth.append(self._lines_to_read(lines, shapes, index))
        return index not in worth[0]

    def _lines_to_read(
        self, lines: Sequence[bytes], shapes: Sequence[bytes], begin: int
    ) -> set[int]:
        """Which lines of unknown shape, from `begin` on, must be read. NCCL's calls that are like
        one that waits are counted here.
        """
        new = [index for index in range(begin, len(shapes)) if shapes[index] not in self._actions]
        text = b"\n".join([shapes[index] for index in new])
        if any(map(text.__contains__, _REQUEST_LOGS)):
            new = [
                index
                for index in new
                if not any(map(lines[index][:200].__contains__, _REQUEST_LOGS))
            ]
        calls = (
            {index for index in new if b"opCount" in shapes[index]} if b"opCount" in text else set()
        )
        new = [index for index in new if index not in calls] if calls else new
        worth = {
            new[place]
            for place in select_lines(
                [lines[index] for index in new], [shapes[index] for index in new]
            )
        }
        self._remember_skipped([shapes[index] for index in new if index not in worth])
        return worth | {index for index in calls if not self._is_known_call(lines[index])}

    def _is_known_call(self, raw: bytes) -> bool:
        found = _CALL.fullmatch(raw)
        key = b"0".join((*found.groups(), b"")) if found else raw
        if key not in self._nccl_counts:
            return False
        self._nccl_counts[key] += 1
        return True

    def _remember_skipped(self, dull: Sequence[bytes]) -> None:
        """Shapes that tell nothing are known from their second block on: most never come again."""
        hashes = set(map(hash, dull))
        if again := hashes & self._seen_once:
            room = max(_MAX_SHAPES - len(self._actions) - 1, 0)
            known = [
                shape for shape in dull if hash(shape) in again and len(shape) <= _LONGEST_SHAPE
            ]
            self._actions.update(dict.fromkeys(known[:room], _SKIP))
        self._seen_once = hashes if len(self._seen_once) > _MAX_SHAPES else self._seen_once | hashes

    def _apply_action(self, action: _Action | None, raw: bytes) -> None:
        if isinstance(action, _AnsweredRequest):
            self._accumulator.add_answered_request(action.healthy, action.failed)
        elif isinstance(action, _NcclLine):
            self._nccl_counts[raw] = self._nccl_counts.get(raw, 0) + 1
            if len(self._nccl_counts) >= _MAX_BUFFERED_NCCL:
                self._flush_nccl()
        elif isinstance(action, _ProgressBar):
            if not action.raw:
                self._bars.append(action)
            self._bar_count += 1
            action.raw, action.order = raw, self._bar_count

    def _read_new_shape(self, raw: bytes, shape: bytes) -> None:
        """Word by word, and whether lines of this shape must be read so again."""
        raw, shape = _without_ids(raw, shape)
        action = self._actions.get(shape)
        if action is None:
            self._clear_full_actions()
            action = self._action_for_shape(raw)
            if action is not None and len(shape) <= _LONGEST_SHAPE:
                self._actions[shape] = action
        if action is None or isinstance(action, _ReadEachLine):
            self._read_each_line(raw, shape)
        elif isinstance(action, BatchLineLayout):
            action.raws.append(raw)
            action.line_indices.append(self._batches)
            self._batches += 1
        else:
            self._apply_action(action, raw)

    def _read_each_line(self, raw: bytes, shape: bytes) -> None:
        dull, numbers_matter = self._read_messages(raw), bool(_NUMBERS_MATTER.search(raw))
        if len(shape) > _LONGEST_SHAPE:
            return
        if shape not in self._actions:
            self._actions[shape] = _SKIP if dull and not numbers_matter else _READ_EACH_LINE
        elif not dull:
            self._relevant_counts[shape] = looks = self._relevant_counts.get(shape, 0) + 1
            if (
                looks >= _MAX_RELEVANT_PER_SHAPE
                and not numbers_matter
                and not self._accumulator.is_launch_progress(raw)
            ):
                self._actions[shape] = _SKIP

    def _clear_full_actions(self) -> None:
        if len(self._actions) >= _MAX_SHAPES:
            self._flush()
            self._layouts = []
            self._generation += 1
            self._actions.clear()
            self._relevant_counts.clear()

    def _action_for_shape(self, raw: bytes) -> _Action | None:
        """What lines of this shape are, where one look is enough for all of them."""
        if b" batch" in raw and (layout := detect_layout(raw)):
            self._layouts.append(layout)
            return layout
        if any(map(raw[:200].__contains__, _REQUEST_LOGS)) or not self._accumulator.may_be_relevant(
            raw
        ):
            return _SKIP
        if not _is_one_message(raw):
            return None
        if b"HTTP/" in raw and (found := _ACCESS.search(raw)):
            return _access_log_action(raw, found)
        if b"NCCL INFO" in raw:
            return None if self._accumulator.is_warning_or_failure(raw) else _NCCL_LINE
        return _ProgressBar() if _BAR.search(raw) else None

    def _read_messages(self, raw: bytes) -> bool:
        """True when no message of the line told anything."""
        self._flush_progress_bars()
        dull = True
        for line in read_log_lines(raw):
            if batch := read_batch(line):
                self._irregular_columns.append(columns_from_batch(batch, line, self._batches))
                self._accumulator.keep_sample(batch, self._batches)
                self._batches += 1
                dull = False
                continue
            if _NCCL.search(line.text.encode()):
                self._add_nccl_message(line)
            if self._accumulator.needs_flush_before(line):
                self._flush()
            self._accumulator.batches = self._batches
            dull = not self._accumulator.add_message(line) and dull
        return dull

    def _add_nccl_message(self, line: LogLine) -> None:
        self._apply_action(_NCCL_LINE, line.text.encode())

    def _flush_progress_bars(self) -> None:
        bars, self._bars = sorted(self._bars, key=lambda bar: bar.order), []
        for bar in bars:
            raw, bar.raw = bar.raw, b""
            for line in read_log_lines(raw):
                self._accumulator.add_message(line)

    def _flush(self) -> None:
        """Batch lines that wait are added up."""
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


def _is_one_message(raw: bytes) -> bool:
    return len(list(read_log_lines(raw))) == 1


def _without_ids(raw: bytes, shape: bytes) -> tuple[bytes, bytes]:
    """A line of NCCL's calls without its pointers, and the shape of any line without long
    hexadecimal ids.
    """
    if b" batch" in raw:
        return raw, raw.translate(None, DIGITS)  # the places of its numbers count
    if b"opCount" in raw:
        raw = _CALL_IDS.sub(b"0", raw)
    plain = _IDS.sub(b"", raw)
    return raw, plain.translate(None, DIGITS) if len(plain) < len(raw) else raw.translate(
        None, DIGITS
    )


def _access_log_action(raw: bytes, found: re.Match[bytes]) -> _AnsweredRequest | _Skip:
    health, failed = _HEALTH.search(raw), found[1].startswith(b"5")
    return (
        _AnsweredRequest(health[1] == b"200" if health else None, failed)
        if health or failed
        else _SKIP
    )
