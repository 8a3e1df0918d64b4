"""Owns what Ctrl-C and SIGTERM mean to a command that has servers running: once asks to stop, twice
leaves. Stops nothing itself.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupts:
    """Counts the signals; `asked` is set by the first, `on_second` is called by the second."""

    def __init__(self, on_second: Callable[[], None]) -> None:
        self.stop_requested = asyncio.Event()
        self.leaving = False
        self._on_second = on_second

    def _on_signal(self) -> None:
        if self.stop_requested.is_set():
            self.leaving = True
            self._on_second()
        self.stop_requested.set()

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """While inside, SIGINT and SIGTERM come here instead of ending the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
