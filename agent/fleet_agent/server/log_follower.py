"""Owns the reading of a server's log while it is launched: in pieces, each once, and off the loop.
Judges no launch.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet_agent.core.stall_detection import (
    LogSample,
    StallState,
    advance_stall_state,
    is_stalled,
    start_tracking,
)
from fleet_agent.storage.log_limits import next_data_offset
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_protos.events import ServerProgressed

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20
_LINE_END = re.compile(rb"[\r\n]+")
_NUMBERS = re.compile(rb"[\d.:]+")
_ACCESS_LOG = b'HTTP/1.1"'  # uvicorn's line about a request: those are our own looks
_PROGRESS_BAR = b"%|"
_SHAPES_KEPT = 4096
_CLASSES_WITHOUT_EXIT = frozenset(
    {"port_in_use"}
)  # uvicorn gives up, and the launcher waits for its other threads for ever: seen with 0.5.23


@dataclass(frozen=True, slots=True)
class LaunchStall:
    """A launch that stood still longer than its phase may; `at_s` on the loop's clock."""

    state: StallState
    at_s: float


@dataclass(frozen=True, slots=True)
class FailedWithoutExit:
    """A launch whose log says that it failed in a way that SGLang does not exit after."""


class LogFollower:
    """What a log has told so far. Constant memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = LogReader()
        self._offset = 0
        self._partial_line = b""
        self._seen_shapes: set[int] = set()
        self._stopped = asyncio.Event()

    async def follow(
        self, report: Callable[[ServerProgressed], None], limits_s: Mapping[str, float]
    ) -> LaunchStall | FailedWithoutExit | None:
        """Tell each step of the launch until it cannot go on, or stands still longer than its phase
        may, or until `end`: then None.
        """
        clock = asyncio.get_running_loop().time
        state = start_tracking(clock())
        while not self._stopped.is_set():
            sample = await asyncio.to_thread(self.read)
            state, event = advance_stall_state(state, sample, clock())
            if event:
                report(event)
            if sample.has_news and await asyncio.to_thread(self._failed_without_exit):
                return FailedWithoutExit()
            if is_stalled(state, limits_s, clock()):
                return LaunchStall(state, clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._stopped.wait()
        return None

    def stop_following(self) -> None:
        """The launch is over; `follow` returns soon."""
        self._stopped.set()

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

    def read(self, end: int | None = None) -> LogSample:
        """Take in what was added since the last call, at most up to the byte `end`; a log that is
        not there is empty.
        """
        grew = False
        try:
            with self._path.open("rb") as file:
                self._offset = max(
                    self._offset, next_data_offset(file.fileno(), self._offset)
                )  # a bounded log has a hole
                file.seek(self._offset)
                while piece := file.read(
                    _CHUNK_BYTES if end is None else max(0, min(_CHUNK_BYTES, end - self._offset))
                ):
                    self._offset += len(piece)
                    self._reader.feed(piece)
                    grew |= self._has_new_line(piece)
        except OSError:
            pass
        done, total = self._reader.progress
        return LogSample(self._reader.phase, done, total, grew)

    def _failed_without_exit(self) -> bool:
        return (
            not self._partial_line and self._reader.finish().failure_class in _CLASSES_WITHOUT_EXIT
        )

    def _has_new_line(self, piece: bytes) -> bool:
        """A line of a shape not seen before, or a progress bar. A line that was there before with
        other numbers does not count.
        """
        *lines, self._partial_line = _LINE_END.split(self._partial_line[-_CHUNK_BYTES:] + piece)
        return any([self._is_new_line(line) for line in lines if line and _ACCESS_LOG not in line])

    def _is_new_line(self, line: bytes) -> bool:
        if _PROGRESS_BAR in line:
            return True
        shape = hash(_NUMBERS.sub(b"", line))
        if shape in self._seen_shapes:
            return False
        if len(self._seen_shapes) < _SHAPES_KEPT:
            self._seen_shapes.add(shape)
        return True
