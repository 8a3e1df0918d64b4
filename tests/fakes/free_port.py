"""Owns the choice of a TCP port of loopback that nobody has at the moment. Keeps none."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Free until somebody takes it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
