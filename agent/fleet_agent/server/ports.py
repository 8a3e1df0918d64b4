"""Finds a free port for each launch."""

from __future__ import annotations

import socket

from fleet_agent.core.allocation import GpuPool, claim_gpus, promise_port, release
from fleet_protos.errors import Conflict

_ATTEMPTS = 64


class Ports:
    """Assigns ports of 127.0.0.1 to launches. No two launches have the same port."""

    def __init__(self) -> None:
        self._pool = GpuPool()

    def allocate(self, trial: str) -> int:
        """Return a port that was free a moment ago. Raises Conflict if no free port was found."""
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
            "there is no free port on 127.0.0.1",
            "end processes that hold ports, or widen net.ipv4.ip_local_port_range",
        )

    def release_port(self, trial: str) -> None:
        """Release the port of a launch that is over."""
        self._pool = release(self._pool, trial)
