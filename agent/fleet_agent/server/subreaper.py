"""The parent of one server: it adopts every process that the server leaves, so that none escapes.

    subreaper.py MARKER TOKEN        (the command on stdin, as JSON: argv, env, cwd)

The kernel gives a process whose parent has ended to the nearest subreaper above it, whatever the
process did to its session, environment, output or name. So the subreaper has no child left only
when nothing of the server is left, and then it ends. It writes to stdout, as JSON lines, the
launcher's process id and then its exit code. SIGTERM orders it to kill all that is left.

MARKER is a file that exists from the start to this orderly end. If it exists without the process,
the subreaper was killed, and processes of the server may be left. TOKEN only shows in `ps`. Needs
nothing but the standard library, and starts without `site`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.5  # between two rounds of kills
_WAITED_FOR = (signal.SIGCHLD, signal.SIGTERM)
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)


def main() -> int:
    """Start the server, and stay until none of its processes is left."""
    marker = sys.argv[1]
    order = json.loads(sys.stdin.buffer.read() or b"null")
    if order is None:  # the agent ended before it had sent the order
        return 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        _report(errno=ctypes.get_errno(), error="prctl PR_SET_CHILD_SUBREAPER failed")
        return 1
    for number in (signal.SIGTERM, *_IGNORED):  # a handler, unlike SIG_IGN, ends with execve
        signal.signal(number, _do_nothing)
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        server = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            process_group=0,  # signals to the server's group must not reach this process
        )
    except OSError as error:
        _report(errno=error.errno, error=error.strerror, file=error.filename)
        os.unlink(marker)
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    _report(pid=server.pid)
    _stay(server.pid)
    os.unlink(marker)
    return 0


def _stay(launcher: int) -> None:
    """Reap children until there are none; once ordered by SIGTERM, kill them."""
    killing, pause_s = False, _FIRST_PAUSE_S
    while _reap(launcher):
        if not killing:
            killing = signal.sigwait(_WAITED_FOR) == signal.SIGTERM
            continue
        for pid in _children():
            # the pid cannot have been reused: a dead child keeps it until it is reaped
            _kill(pid)
        ended = signal.sigtimedwait(_WAITED_FOR, pause_s)
        pause_s = _FIRST_PAUSE_S if ended else min(pause_s * 2, _LONGEST_PAUSE_S)


def _reap(launcher: int) -> bool:
    """Reap all children that have ended; return whether a living one is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == launcher:
            _report(exit_code=os.waitstatus_to_exitcode(status))


def _children() -> list[int]:
    """Return the ids of this process's children, dead ones included."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [
            int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == own
        ]


def _parent(name: str) -> int:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:  # it has another user id; the agent names it
        return


def _report(**content: Any) -> None:
    try:
        os.write(1, json.dumps(content).encode() + b"\n")
    except OSError:  # the agent is gone; the next one finds this process by its record
        return


def _do_nothing(_number: int, _frame: Any) -> None:
    return


if __name__ == "__main__":
    sys.exit(main())
