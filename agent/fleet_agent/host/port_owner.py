"""Finds in /proc the process that listens on a TCP port of this host.

Unlike an answer over HTTP, this shows with certainty which process listens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fleet_agent.host.processes import ProcessStat, all_processes

_PROC = Path("/proc")
_LISTEN = "0A"


def foreign_listener(port: int, ours: Iterable[ProcessStat]) -> str:
    """Return a description of the process that listens on `port`, if it is not one of `ours`.

    Empty if a process of `ours` listens, if no process listens, or if /proc does not show it.
    """
    sockets = frozenset(_listening_sockets(port))
    ours = tuple(ours)
    if not sockets or not ours:
        return ""
    for process in ours:
        held = _open_files(process.pid)
        if held is None or held & sockets:
            return ""
    own = {process.pid for process in ours}
    others = (
        process
        for process in all_processes().values()
        if process.pid not in own and (_open_files(process.pid) or set()) & sockets
    )
    return next(
        (f"pid {process.pid} ({process.name})" for process in others), "a process of another user"
    )


def _listening_sockets(port: int) -> Iterator[str]:
    """Yield the sockets that listen on the port, written like the links in /proc/PID/fd. See
    proc_net_tcp in the Linux documentation.
    """
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (_PROC / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"


def _open_files(pid: int) -> set[str] | None:
    """Return the files and sockets that a process has open. Return None without the permission to
    read them, and an empty set if the process has just ended.
    """
    folder = _PROC / str(pid) / "fd"
    found = set()
    try:
        for name in os.listdir(folder):
            try:
                found.add(os.readlink(folder / name))
            except FileNotFoundError:
                continue
    except (FileNotFoundError, ProcessLookupError):
        return set()
    except OSError:
        return None
    return found
