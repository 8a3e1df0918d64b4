"""Owns one question: does somebody accept connections at this address? Needs no gRPC, so that it
costs nothing to ask.
"""

from __future__ import annotations

import socket


def is_listening(address: str) -> bool:
    """True for a `unix:PATH` where a process listens; a socket file that a killed one left behind
    does not count.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.removeprefix("unix:"))
        except OSError:
            return False
    return True
