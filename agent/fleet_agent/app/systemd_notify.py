"""Owns telling systemd that the agent listens (sd_notify(3)); silent where nobody asked for it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify_ready() -> None:
    """Say READY=1 on $NOTIFY_SOCKET, once: what the agent starts must not speak for it."""
    path = os.environ.pop("NOTIFY_SOCKET", "")
    if not path:
        return
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line,
    ):
        line.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)
