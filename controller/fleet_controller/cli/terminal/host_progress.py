"""Owns one line a host while a command works on many: redrawn on a terminal, one line for each
change in a pipe. Knows not what is done.
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
    """What happens at each host now. May be told from any thread."""

    def __init__(self, hosts: Sequence[str], *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._now = dict.fromkeys(hosts, "waiting")
        self._began = time.monotonic()
        self.live: Live | None = None

    def update(self, host: str, what: str) -> None:
        """The newest of one host."""
        with self._lock:
            changed, self._now[host] = self._now.get(host) != what, what
            if changed and self.live is None and not self._quiet:
                sys.stderr.write(f"{time.monotonic() - self._began:6.1f} s  {host}: {what}\n")
                sys.stderr.flush()

    def render(self) -> Text:
        """All hosts, for a terminal."""
        from rich.text import Text

        with self._lock:
            width = max(map(len, self._now), default=0)
            return Text("\n".join(f"{host:<{width}}  {what}" for host, what in self._now.items()))


@contextmanager
def host_progress_display(hosts: Sequence[str], *, quiet: bool) -> Iterator[HostProgress]:
    """The display that fits standard error. `quiet`: none at all."""
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
