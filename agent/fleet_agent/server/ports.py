"""Owns the search for a free port for each launch; which launch has which is a value of the core.
Binds only to look.
"""

from __future__ import annotations

import socket

from fleet_agent.core.allocation import GpuPool, claim_gpus, promise_port, release
from fleet_protos.errors import Conflict

_ATTEMPTS = 64


class Ports:
    """A fresh port of 127.0.0.1 for each launch, never one that another launch holds."""

    def __init__(self) -> None:
        self._pool = GpuPool()

    def allocate(self, trial: str) -> int:
        """A port that was free a moment ago. Raises Conflict when none can be had."""
        self._pool, _ = claim_gpus(self._pool, trial, 0)
        for _ in range(_ATTEMPTS):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            try:
                self._pool = promise_port(self._pool, trial, port)
            except Conflict:
                continue
            return port
        raise Conflict(
            "no free port on 127.0.0.1",
            "end what holds them, or widen net.ipv4.ip_local_port_range",
        )

    def release_port(self, trial: str) -> None:
        """The launch is over."""
        self._pool = release(self._pool, trial)
