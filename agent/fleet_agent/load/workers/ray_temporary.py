"""Chooses the temporary folder of Ray. This module does not import Ray, so that the agent can
create and remove the folder.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

# a Unix socket's path has at most 107 bytes, of which our and Ray's names take up to 79
_SOCKET_ROOM: Final = 28


def temporary_folder() -> str:
    """Create a folder with a path that is short enough for Ray's sockets, and return it. Raises
    OSError if no such folder is possible.
    """
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(folder) <= _SOCKET_ROOM and os.access(folder, os.W_OK | os.X_OK):
            return tempfile.mkdtemp(prefix="bf-", dir=folder)
    raise OSError(
        "Ray's sockets need a writable folder with a short path: "
        f"set TMPDIR to a folder whose path has at most {_SOCKET_ROOM} characters"
    )
