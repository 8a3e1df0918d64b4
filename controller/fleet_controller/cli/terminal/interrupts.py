"""Handles Ctrl-C and SIGTERM for a command with running servers. The first signal asks the command
to stop. The second signal asks it to leave at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupts:
    """Handles signals. The first signal sets `stop_requested`. Every further signal calls
    `on_second`.
    """

    def __init__(self, on_second: Callable[[], None]) -> None:
        self.stop_requested = asyncio.Event()
        self._on_second = on_second

    def _on_signal(self) -> None:
        if self.stop_requested.is_set():
            self._on_second()
        self.stop_requested.set()

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Receive SIGINT and SIGTERM while inside, so that they do not end the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
