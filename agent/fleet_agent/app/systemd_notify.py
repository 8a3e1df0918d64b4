"""Notifies systemd that the agent listens (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify_ready() -> None:
    """Send READY=1 to $NOTIFY_SOCKET if it is set, and unset it: the agent's children must not
    notify in its place.
    """
    path = os.environ.pop("NOTIFY_SOCKET", "")
    if not path:
        return
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line,
    ):
        line.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)
