"""Owns progress on the terminal: a live display on one, plain lines with the time of day in a pipe.
Results never pass here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from fleet_controller.report.job_progress import JobProgress, progress_lines
from fleet_protos.escape import escape_unprintable

if TYPE_CHECKING:
    from rich.text import Text


class ProgressDisplay(Protocol):
    """Where progress goes."""

    def update(self, progress: JobProgress, lines: Sequence[str]) -> None:
        """Show the new state; `lines` say what changed."""
        ...

    def print_line(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None:
        """Give the terminal back; may be repeated."""
        ...


class PlainDisplay:
    """One line for each change, to standard error."""

    def update(self, progress: JobProgress, lines: Sequence[str]) -> None:
        """See `Display`."""
        for line in lines:
            self.print_line(line)

    def print_line(self, text: str) -> None:
        """See `Display`."""
        sys.stderr.write(f"{datetime.now().astimezone():%H:%M:%S} {escape_unprintable(text)}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """See `Display`."""


class LiveDisplay:
    """A few lines in place, drawn anew twice a second; endings stay above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = JobProgress()
        self._at = time.monotonic()
        self.live = Live(
            get_renderable=self._render,
            console=Console(stderr=True),
            refresh_per_second=2,
            transient=True,
        )

    def update(self, progress: JobProgress, lines: Sequence[str]) -> None:
        """See `Display`."""
        self._progress, self._at = progress, time.monotonic()
        for line in lines:
            if line.endswith((": ok", ": cancelled")) or ": failed (" in line:
                self.print_line(line)

    def print_line(self, text: str) -> None:
        """See `Display`."""
        from rich.text import Text

        self.live.console.print(Text(escape_unprintable(text)), soft_wrap=True)

    def close(self) -> None:
        """See `Display`."""
        self.live.stop()

    def _render(self) -> Text:
        from rich.text import Text

        # Called by Rich's thread: reads one reference to a frozen value.
        return Text(
            escape_unprintable(
                "\n".join(progress_lines(self._progress, time.monotonic() - self._at))
            ),
            overflow="fold",
        )


@contextmanager
def progress_display() -> Iterator[ProgressDisplay]:
    """The display that fits standard error."""
    if not sys.stderr.isatty():
        yield PlainDisplay()
        return
    live_display = LiveDisplay()
    with live_display.live:
        yield live_display
