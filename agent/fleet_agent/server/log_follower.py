"""Follows the log of a server during its launch. A thread reads each byte of the log once."""

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
from fleet_protos.regular_file import open_regular_file

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20
_LINE_END = re.compile(rb"[\r\n]+")
_NUMBERS = re.compile(rb"[\d.:]+")
_ACCESS_LOG = b'HTTP/1.1"'  # uvicorn's line about a request: during a launch, our own checks
_PROGRESS_BAR = b"%|"
_SHAPES_KEPT = 4096
# uvicorn gives up, and the launcher waits for its other threads without end: seen with 0.5.23
_CLASSES_WITHOUT_EXIT = frozenset({"port_in_use"})


@dataclass(frozen=True, slots=True)
class LaunchStall:
    """A launch that has stalled for longer than the limit of its phase. `at_s` is when this was
    noticed, in seconds on the event loop's clock.
    """

    state: StallState
    at_s: float


@dataclass(frozen=True, slots=True)
class FailedWithoutExit:
    """Means that the log of a launch shows a failure after which SGLang does not exit."""


class LogFollower:
    """Reads a log from its beginning and keeps what the log has shown so far,
    in constant memory.
    """

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
        """Report the progress of the launch until it fails, stalls, or `stop_following` is called.

        `limits_s` maps phases to the seconds for which they may stall. Return why following ended,
        None after `stop_following`.
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
        """Make `follow` return soon, because the launch is over."""
        self._stopped.set()

    def phases_s(self) -> Mapping[str, float]:
        """Return the seconds that each phase took. Call it only when `follow` has ended."""
        return dict(self.diagnose().phases_s)

    def diagnose(self, end: int | None = None) -> Diagnosis:
        """Diagnose the log up to the byte `end`. Call it only when `follow` has ended."""
        self.read(end)
        return self._reader.finish()

    def size(self) -> int:
        """Return the current size of the log in bytes."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def read(self, end: int | None = None) -> LogSample:
        """Read what was added to the log since the last call, at most up to the byte `end`.

        A missing log counts as empty.
        """
        grew = False
        try:
            with open_regular_file(self._path) as file:
                # a trimmed log has a hole
                self._offset = max(self._offset, next_data_offset(file.fileno(), self._offset))
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
        """Return whether `piece` has a progress bar, or a line that differs from all earlier lines.

        A line that differs only in its numbers does not count.
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
