"""Shows what happens at each host while a command works on many hosts: a live list on a terminal,
or a line for each change in a pipe.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


class HostProgress:
    """Holds the current step of each host. It is thread-safe."""

    def __init__(self, hosts: Sequence[str], *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._steps = dict.fromkeys(hosts, "waiting")
        self._started = time.monotonic()
        self.live: Live | None = None

    def update(self, host: str, step: str) -> None:
        """Set the current step of a host."""
        with self._lock:
            changed, self._steps[host] = self._steps.get(host) != step, step
            if changed and self.live is None and not self._quiet:
                sys.stderr.write(f"{time.monotonic() - self._started:6.1f} s  {host}: {step}\n")
                sys.stderr.flush()

    def render(self) -> Text:
        """Return one line for each host, for a terminal."""
        from rich.text import Text

        with self._lock:
            width = max(map(len, self._steps), default=0)
            return Text("\n".join(f"{host:<{width}}  {step}" for host, step in self._steps.items()))


@contextmanager
def host_progress_display(hosts: Sequence[str], *, quiet: bool) -> Iterator[HostProgress]:
    """Show progress in the form that fits standard error while inside. With `quiet`, nothing is
    shown.
    """
    progress = HostProgress(hosts, quiet=quiet)
    if quiet or not sys.stderr.isatty():
        yield progress
        return
    from rich.console import Console
    from rich.live import Live

    with Live(
        get_renderable=progress.render, console=Console(stderr=True), refresh_per_second=4
    ) as progress.live:
        yield progress
