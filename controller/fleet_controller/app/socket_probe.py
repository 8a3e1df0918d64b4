"""Tests whether a process accepts connections at an address, without importing gRPC,
which is slow.
"""

from __future__ import annotations

import socket


def is_listening(address: str) -> bool:
    """Return whether a process listens at a `unix:PATH`. A socket file left by a killed process
    does not count.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.removeprefix("unix:"))
        except OSError:
            return False
    return True
