"""Owns the reading of a server's log while it is launched: in pieces, each once, and off the loop. Judges no launch."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet_agent.core.stall_detection import Course, Look, advance, begin, stands_still
from fleet_agent.storage.log_limits import next_data
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_protos.events import ServerProgressed

_LOOK_S = 0.2
_PIECE_BYTES = 1 << 20
_LINE_END = re.compile(rb"[\r\n]+")
_NUMBERS = re.compile(rb"[\d.:]+")
_ACCESS = b'HTTP/1.1"'  # uvicorn's line about a request: those are our own looks
_BAR = b"%|"
_SHAPES_KEPT = 4096
_NO_EXIT = frozenset({"port_in_use"})  # uvicorn gives up, and the launcher waits for its other threads for ever: seen with 0.5.23


@dataclass(frozen=True, slots=True)
class Stalled:
    """A launch that stood still longer than its phase may; `at_s` on the loop's clock."""

    course: Course
    at_s: float


@dataclass(frozen=True, slots=True)
class Hanging:
    """A launch whose log says that it failed in a way that SGLang does not exit after."""


class LogFollower:
    """What a log has told so far. Constant memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = LogReader()
        self._offset = 0
        self._rest = b""
        self._shapes: set[int] = set()
        self._ended = asyncio.Event()

    async def follow(self, tell: Callable[[ServerProgressed], None], limits_s: Mapping[str, float]) -> Stalled | Hanging | None:
        """Tell each step of the launch until it cannot go on, or stands still longer than its phase may, or until `end`: then None."""
        clock = asyncio.get_running_loop().time
        course = begin(clock())
        while not self._ended.is_set():
            seen = await asyncio.to_thread(self.read)
            course, event = advance(course, seen, clock())
            if event:
                tell(event)
            if seen.grew and await asyncio.to_thread(self._hangs):
                return Hanging()
            if stands_still(course, limits_s, clock()):
                return Stalled(course, clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._ended.wait()
        return None

    def end(self) -> None:
        """The launch is over; `follow` returns soon."""
        self._ended.set()

    def phases_s(self) -> Mapping[str, float]:
        """Seconds that each phase took, as the log has them; for when nothing follows any more."""
        return dict(self.diagnose().phases_s)

    def diagnose(self, end: int | None = None) -> Diagnosis:
        """What the log comes to, whole or up to the byte `end`; for when nothing follows any more."""
        self.read(end)
        return self._reader.finish()

    def size(self) -> int:
        """Bytes of the log now."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def read(self, end: int | None = None) -> Look:
        """Take in what was added since the last call, at most up to the byte `end`; a log that is not there is empty."""
        grew = False
        try:
            with self._path.open("rb") as file:
                self._offset = max(self._offset, next_data(file.fileno(), self._offset))  # a bounded log has a hole
                file.seek(self._offset)
                while piece := file.read(_PIECE_BYTES if end is None else max(0, min(_PIECE_BYTES, end - self._offset))):
                    self._offset += len(piece)
                    self._reader.feed(piece)
                    grew |= self._says_something_new(piece)
        except OSError:
            pass
        done, total = self._reader.progress
        return Look(self._reader.phase, done, total, grew)

    def _hangs(self) -> bool:
        return not self._rest and self._reader.finish().failure_class in _NO_EXIT

    def _says_something_new(self, piece: bytes) -> bool:
        """A line of a shape not seen before, or a progress bar. A line that was there before with other numbers does not count."""
        *lines, self._rest = _LINE_END.split(self._rest[-_PIECE_BYTES:] + piece)
        return any([self._is_new(line) for line in lines if line and _ACCESS not in line])

    def _is_new(self, line: bytes) -> bool:
        if _BAR in line:
            return True
        shape = hash(_NUMBERS.sub(b"", line))
        if shape in self._shapes:
            return False
        if len(self._shapes) < _SHAPES_KEPT:
            self._shapes.add(shape)
        return True
