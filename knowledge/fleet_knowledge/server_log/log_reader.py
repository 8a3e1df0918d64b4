"""Owns the reading of a server's log from chunks of bytes in constant memory: each shape of line is understood once. Does no I/O.

Most lines of a long log repeat a few shapes (a line without its digits). The first line of a shape is read word by word; what it turned
out to be decides how all later ones are treated: passed over, counted, read as columns of numbers, or looked at again. The result depends
on the sequence of lines alone, never on how the bytes were cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_knowledge.server_log.diagnosis.accumulator import Story
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis
from fleet_knowledge.server_log.parsing.batch_columns import (
    DIGITS,
    Layout,
    Rows,
    layout_of,
    rows_of,
)
from fleet_knowledge.server_log.parsing.batch_lines import read_batch
from fleet_knowledge.server_log.parsing.log_lines import Line, read_lines
from fleet_knowledge.server_log.symptoms.prefilter import telling

_LONGEST_LINE = 64 * 1024  # bytes; what is longer prints data, and its rest is passed over
_LONGEST_SHAPE = 1024
_BLOCK = _LONGEST_LINE  # so a line within one is never too long
_SHAPES = 8192
_WAITING = 4096  # batch lines, read together
_NCCL_WAITING = 4096  # different lines
_SIEVED_FROM = 2048  # shapes: a log with more has lines that are all unlike, and from there on only those with a telling word are read
_LOOKS = 64  # at lines of one shape that tell of trouble: the next ones tell nothing new
_NUMBERS_MATTER = re.compile(rb"[Ee]rror \d|[Ee]rror: \d|exit(?:ed)?\W|[Ee]xit code|[Xx]id|rc=|signal|timeout|status")
_BAR = re.compile(rb"%\|| Completed \|")
_NCCL = re.compile(rb"N?CCL|^(?:HIP|ROCm) version|^Hostname +:|^Librccl")
_REQUEST_LOGS = (b"Receive: obj=", b"Finish: obj=")  # with the texts of requests, each of a shape of its own
_HEALTH = re.compile(rb'"GET /health(?:_generate)?[^"]*" (\d\d\d)')
_ACCESS = re.compile(rb'"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS) /[^"]*" (\d\d\d) [A-Z]')
# Pointers, counters and ids: no two lines are equal with them, and nobody reads them
_CALL_IDS = re.compile(rb"(?<=opCount )[0-9a-f]+|0x[0-9a-f]+")
_IDS = re.compile(rb"[0-9a-f]{8,}")
# A call as NCCL_DEBUG_SUBSYS=COLL tells it; its groups are what is kept
_CALL = re.compile(
    rb"([^\x1b\x00{]*? NCCL INFO \w+: opCount )[0-9a-f]+( sendbuff )(?:0x)?[0-9a-f]+( recvbuff )(?:0x)?[0-9a-f]+"
    rb"( [a-z0-9 ]{1,99} comm )0x[0-9a-f]+( \[nranks=\d+\] stream )0x[0-9a-f]+"
)


@dataclass(slots=True)
class _Bar:
    """Progress bars of one shape: only the last is of interest."""

    raw: bytes = b""
    at: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answered requests of one shape."""

    healthy: bool | None  # of a health check; None for other requests
    failed: bool


class _Skip:
    """Lines of this shape tell nothing."""


class _Nccl:
    """Lines of this shape are for the reader of NCCL's."""


class _LookAgain:
    """Lines of this shape are read word by word, each."""


_SKIP: Final = _Skip()
_NCCL_LINE: Final = _Nccl()
_AGAIN: Final = _LookAgain()
_Action = Layout | _Bar | _Answer | _Skip | _Nccl | _LookAgain


@dataclass(slots=True)
class LogReader:
    """Feed it a log in any pieces, in order; `finish` tells what it comes to. Never raises, whatever the bytes."""

    _story: Story = field(default_factory=Story)
    _carry: list[bytes] = field(default_factory=list)
    _carried: int = 0
    _actions: dict[bytes, _Action] = field(default_factory=dict)
    _looks: dict[bytes, int] = field(default_factory=dict)
    _layouts: list[Layout] = field(default_factory=list)
    _odd: list[Rows] = field(default_factory=list)
    _batches: int = 0
    _read: int = 0  # batch lines read, of those numbered by _batches
    _bars: list[_Bar] = field(default_factory=list)
    _nccl: dict[bytes, int] = field(default_factory=dict)
    _at: int = 0
    _generation: int = 0  # of the actions: how often they were forgotten
    _unlike: int = 0  # shapes so far
    _once: set[int] = field(default_factory=set)  # hashes of shapes that the sieve has passed over
    _sieved_from: int = _SIEVED_FROM

    @property
    def phase(self) -> str:
        """The phase that the launch is in, empty before its first line."""
        self._draw_bars()
        return self._story.launch.phase

    @property
    def progress(self) -> tuple[int, int]:
        """(done, total) of that phase; (0, 0) where it counts nothing."""
        self._draw_bars()
        return self._story.launch.progress

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the log."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")  # progress bars: each update is a line
        for start in range(0, len(chunk), _BLOCK):
            self._feed_block(chunk[start : start + _BLOCK])

    def finish(self) -> Diagnosis:
        """What the log comes to so far; a last line without its end counts. More may be fed afterwards."""
        self._take(b"".join(self._carry))
        self._carry, self._carried = [], 0
        self._flush()
        self._hand_over_nccl()
        return self._story.told()

    def _feed_block(self, block: bytes) -> None:
        end = block.rfind(b"\n")
        if end < 0:
            self._keep(block)
            return
        first = block.find(b"\n")
        self._keep(block[:first])
        self._take(b"".join(self._carry) + block[first:end])
        self._carry, self._carried = [], 0
        self._keep(block[end + 1 :])

    def _keep(self, part: bytes) -> None:
        part = part[: _LONGEST_LINE - self._carried]
        if part:
            self._carry.append(part)
            self._carried += len(part)

    def _take(self, block: bytes) -> None:
        """Whole lines."""
        lines, shapes = block.split(b"\n"), block.translate(None, DIGITS).split(b"\n")
        done = 0
        while done < len(lines):
            done += self._take_known(lines[done:], shapes[done:])

    def _take_known(self, lines: Sequence[bytes], shapes: Sequence[bytes]) -> int:
        """How many lines were taken: not all when the actions were forgotten on the way."""
        counted, limit, generation = self._batches, self._read + _WAITING, self._generation
        worth: list[set[int]] = []  # filled when first needed
        skip, again, layout, nccl_line, nccl = _SKIP, _AGAIN, Layout, _NCCL_LINE, self._nccl
        for index, action in enumerate(map(self._actions.get, shapes)):
            if action is skip or (action is None and self._is_dull(index, lines, shapes, worth)):
                continue
            raw = lines[index]
            if action.__class__ is layout:
                action.raws.append(raw)
                action.at.append(counted)
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
                self._look(raw, shapes[index])
            else:
                self._act(action, raw)
                continue
            if generation != self._generation:
                return index + 1
            counted, limit = self._batches, self._read + _WAITING
        self._batches = counted
        return len(lines)

    def _is_dull(self, index: int, lines: Sequence[bytes], shapes: Sequence[bytes], worth: list[set[int]]) -> bool:
        """Whether the sieve passes over a line of unknown shape; the first shapes of a log are all read."""
        if self._unlike < self._sieved_from:
            self._unlike += 1
            return False
        if not worth:
            worth.append(self._worth(lines, shapes, index))
        return index not in worth[0]

    def _worth(self, lines: Sequence[bytes], shapes: Sequence[bytes], begin: int) -> set[int]:
        """Which lines of unknown shape, from `begin` on, must be read. NCCL's calls that are like one that waits are counted here."""
        new = [index for index in range(begin, len(shapes)) if shapes[index] not in self._actions]
        text = b"\n".join([shapes[index] for index in new])
        if any(map(text.__contains__, _REQUEST_LOGS)):
            new = [index for index in new if not any(map(lines[index][:200].__contains__, _REQUEST_LOGS))]
        calls = {index for index in new if b"opCount" in shapes[index]} if b"opCount" in text else set()
        new = [index for index in new if index not in calls] if calls else new
        worth = {new[place] for place in telling([lines[index] for index in new], [shapes[index] for index in new])}
        self._pass_over([shapes[index] for index in new if index not in worth])
        return worth | {index for index in calls if not self._is_known_call(lines[index])}

    def _is_known_call(self, raw: bytes) -> bool:
        found = _CALL.fullmatch(raw)
        key = b"0".join((*found.groups(), b"")) if found else raw
        if key not in self._nccl:
            return False
        self._nccl[key] += 1
        return True

    def _pass_over(self, dull: Sequence[bytes]) -> None:
        """Shapes that tell nothing are known from their second block on: most never come again."""
        hashes = set(map(hash, dull))
        if again := hashes & self._once:
            room = max(_SHAPES - len(self._actions) - 1, 0)
            known = [shape for shape in dull if hash(shape) in again and len(shape) <= _LONGEST_SHAPE]
            self._actions.update(dict.fromkeys(known[:room], _SKIP))
        self._once = hashes if len(self._once) > _SHAPES else self._once | hashes

    def _act(self, action: _Action | None, raw: bytes) -> None:
        if isinstance(action, _Answer):
            self._story.answered(action.healthy, action.failed)
        elif isinstance(action, _Nccl):
            self._nccl[raw] = self._nccl.get(raw, 0) + 1
            if len(self._nccl) >= _NCCL_WAITING:
                self._hand_over_nccl()
        elif isinstance(action, _Bar):
            if not action.raw:
                self._bars.append(action)
            self._at += 1
            action.raw, action.at = raw, self._at

    def _look(self, raw: bytes, shape: bytes) -> None:
        """Word by word, and whether lines of this shape must be read so again."""
        raw, shape = _without_ids(raw, shape)
        action = self._actions.get(shape)
        if action is None:
            self._make_room()
            action = self._simple(raw)
            if action is not None and len(shape) <= _LONGEST_SHAPE:
                self._actions[shape] = action
        if action is None or isinstance(action, _LookAgain):
            self._look_again(raw, shape)
        elif isinstance(action, Layout):
            action.raws.append(raw)
            action.at.append(self._batches)
            self._batches += 1
        else:
            self._act(action, raw)

    def _look_again(self, raw: bytes, shape: bytes) -> None:
        dull, numbers_matter = self._read_words(raw), bool(_NUMBERS_MATTER.search(raw))
        if len(shape) > _LONGEST_SHAPE:
            return
        if shape not in self._actions:
            self._actions[shape] = _SKIP if dull and not numbers_matter else _AGAIN
        elif not dull:
            self._looks[shape] = looks = self._looks.get(shape, 0) + 1
            if looks >= _LOOKS and not numbers_matter and not self._story.moves(raw):
                self._actions[shape] = _SKIP

    def _make_room(self) -> None:
        if len(self._actions) >= _SHAPES:
            self._flush()
            self._layouts = []
            self._generation += 1
            self._actions.clear()
            self._looks.clear()

    def _simple(self, raw: bytes) -> _Action | None:
        """What lines of this shape are, where one look is enough for all of them."""
        if b" batch" in raw and (layout := layout_of(raw)):
            self._layouts.append(layout)
            return layout
        if any(map(raw[:200].__contains__, _REQUEST_LOGS)) or not self._story.may_tell(raw):
            return _SKIP
        if not _one_message(raw):
            return None
        if b"HTTP/" in raw and (found := _ACCESS.search(raw)):
            return _answer(raw, found)
        if b"NCCL INFO" in raw:
            return None if self._story.heeds(raw) else _NCCL_LINE
        return _Bar() if _BAR.search(raw) else None

    def _read_words(self, raw: bytes) -> bool:
        """True when no message of the line told anything."""
        self._draw_bars()
        dull = True
        for line in read_lines(raw):
            if batch := read_batch(line):
                self._odd.append(rows_of(batch, line, self._batches))
                self._story.sample(batch, self._batches)
                self._batches += 1
                dull = False
                continue
            if _NCCL.search(line.text.encode()):
                self._nccl_message(line)
            if self._story.turns(line):
                self._flush()
            self._story.batches = self._batches
            dull = not self._story.take(line) and dull
        return dull

    def _nccl_message(self, line: Line) -> None:
        self._act(_NCCL_LINE, line.text.encode())

    def _draw_bars(self) -> None:
        bars, self._bars = sorted(self._bars, key=lambda bar: bar.at), []
        for bar in bars:
            raw, bar.raw = bar.raw, b""
            for line in read_lines(raw):
                self._story.take(line)

    def _flush(self) -> None:
        """Batch lines that wait are added up."""
        self._draw_bars()
        pieces, self._odd = self._odd, []
        for layout in self._layouts:
            if layout.raws:
                self._story.sample_raw(layout.raws, layout.at)
                pieces += layout.rows()
        self._read = self._story.batches = self._batches
        self._story.add(pieces)

    def _hand_over_nccl(self) -> None:
        waiting = list(self._nccl.items())
        self._nccl.clear()
        for raw, times in waiting:
            for line in read_lines(raw):
                self._story.nccl_line(line, times)


def _one_message(raw: bytes) -> bool:
    return len(list(read_lines(raw))) == 1


def _without_ids(raw: bytes, shape: bytes) -> tuple[bytes, bytes]:
    """A line of NCCL's calls without its pointers, and the shape of any line without long hexadecimal ids."""
    if b" batch" in raw:
        return raw, raw.translate(None, DIGITS)  # the places of its numbers count
    if b"opCount" in raw:
        raw = _CALL_IDS.sub(b"0", raw)
    plain = _IDS.sub(b"", raw)
    return raw, plain.translate(None, DIGITS) if len(plain) < len(raw) else raw.translate(None, DIGITS)


def _answer(raw: bytes, found: re.Match[bytes]) -> _Answer | _Skip:
    health, failed = _HEALTH.search(raw), found[1].startswith(b"5")
    return _Answer(health[1] == b"200" if health else None, failed) if health or failed else _SKIP
