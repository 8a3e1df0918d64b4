"""Shows the progress of a job on standard error: a live display on a terminal, or plain lines with
the time of day in a pipe.
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
    """Shows the progress of a job."""

    def update(self, progress: JobProgress, lines: Sequence[str]) -> None:
        """Show the new state. `lines` describe what changed."""
        ...

    def print_line(self, text: str) -> None:
        """Print a line that stays on the terminal."""
        ...

    def close(self) -> None:
        """Stop drawing on the terminal. This may be called again."""
        ...


class PlainDisplay:
    """Prints one line for each change."""

    def update(self, progress: JobProgress, lines: Sequence[str]) -> None:
        """Print each of `lines`. The state is not shown."""
        for line in lines:
            self.print_line(line)

    def print_line(self, text: str) -> None:
        """Print a line with the time of day."""
        sys.stderr.write(f"{datetime.now().astimezone():%H:%M:%S} {escape_unprintable(text)}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Do nothing, because there is nothing to stop."""


class LiveDisplay:
    """Redraws a few lines twice a second. Lines about trials that ended stay above the redrawn
    lines.
    """

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
        """Show the new state. Only those of `lines` that are about ended trials are printed."""
        self._progress, self._at = progress, time.monotonic()
        for line in lines:
            if line.endswith((": ok", ": cancelled")) or ": failed (" in line:
                self.print_line(line)

    def print_line(self, text: str) -> None:
        """Print a line above the display."""
        from rich.text import Text

        self.live.console.print(Text(escape_unprintable(text)), soft_wrap=True)

    def close(self) -> None:
        """Stop the display."""
        self.live.stop()

    def _render(self) -> Text:
        from rich.text import Text

        # Rich calls this in its own thread; it only reads references to frozen values.
        return Text(
            escape_unprintable(
                "\n".join(progress_lines(self._progress, time.monotonic() - self._at))
            ),
            overflow="fold",
        )


@contextmanager
def progress_display() -> Iterator[ProgressDisplay]:
    """Yield the display that fits standard error."""
    if not sys.stderr.isatty():
        yield PlainDisplay()
        return
    live_display = LiveDisplay()
    with live_display.live:
        yield live_display
