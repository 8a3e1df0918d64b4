"""Tests whether a process accepts connections at a socket. The slow import of gRPC is avoided."""

from __future__ import annotations

import socket


def is_listening(address: str) -> bool:
    """Return whether a process listens at `unix:PATH`. The socket file of a killed process does not
    count.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.removeprefix("unix:"))
        except OSError:
            return False
    return True
