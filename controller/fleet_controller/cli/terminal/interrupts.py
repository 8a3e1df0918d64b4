"""Owns what Ctrl-C and SIGTERM mean to a command that has servers running: once asks to stop, twice leaves. Stops nothing itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupts:
    """Counts the signals; `asked` is set by the first, `on_second` is called by the second."""

    def __init__(self, on_second: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.leaving = False
        self._on_second = on_second

    def _arrived(self) -> None:
        if self.asked.is_set():
            self.leaving = True
            self._on_second()
        self.asked.set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While inside, SIGINT and SIGTERM come here instead of ending the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._arrived)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
