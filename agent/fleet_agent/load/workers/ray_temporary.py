"""Owns the choice of Ray's temporary folder; imports no Ray, so that the agent can make it and
remove it.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

_SOCKET_ROOM: Final = (
    28  # a Unix socket's path has 107 bytes, ours and Ray's own names take up to 79 of them
)


def temporary_folder() -> str:
    """Make a folder whose path leaves room for Ray's sockets. Raises OSError when there is no place
    for one.
    """
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(folder) <= _SOCKET_ROOM and os.access(folder, os.W_OK | os.X_OK):
            return tempfile.mkdtemp(prefix="bf-", dir=folder)
    raise OSError(
        "no writable folder with a short path for Ray's sockets: set TMPDIR to one of at most 28 characters"
    )
