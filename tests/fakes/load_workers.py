"""Finds the Ray worker that sends requests to a server, and kills a process only while it does what
a test wants to interrupt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from fleet_agent.host.processes import read_stat

SENDING = "ray::run_shard"  # how Ray names a worker while it carries out a share of the load
# and how between two of them; ray::DashboardAgent and ray::RuntimeEnvAgent are no workers
IDLE = "ray::IDLE"
ESTABLISHED = "01"  # in /proc/net/tcp
STOP_S = 5.0
POLL_S = 0.001


def title(pid: int) -> str:
    """Return what a process calls itself, or nothing if it is gone."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        )
    except OSError:
        return ""


def is_idle(pid: int) -> bool:
    """Return True if this is a worker that carries out nothing."""
    return title(pid) == IDLE


def is_sending(pid: int, ports: Collection[int]) -> bool:
    """Return True if this is a worker that carries out a share of the load and is connected to one
    of these ports.

    Its share has no result yet, because a shard closes its connections before it returns one.
    """
    return title(pid) == SENDING and not set(ports).isdisjoint(connected_ports(pid))


def connected_ports(pid: int) -> set[int]:
    """Return the remote ports of the TCP connections that a process has open."""
    try:
        own = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it has ended, or has just closed one
        return set()
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {
        int(words[2].rpartition(":")[2], 16)
        for words in lines
        if words[3] == ESTABLISHED and f"socket:[{words[9]}]" in own
    }


def kill_while(pid: int, holds: Callable[[int], bool]) -> int:
    """Kill a process if `holds(pid)`. Return the wall time of the kill in nanoseconds, or 0 if the
    process was left alone.

    The process is stopped for the last look, so it cannot finish its work between that look and the
    kill.
    """
    with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        stack.callback(os.close, process)
        if not holds(pid):
            return 0
        signal.pidfd_send_signal(process, signal.SIGSTOP)
        stack.callback(_send, process, signal.SIGCONT)
        _await_stopped(pid)
        if holds(pid):
            at_ns = time.time_ns()
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return at_ns
    return 0


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def _await_stopped(pid: int) -> None:
    """Raises ProcessLookupError if it has ended, TimeoutError if it does not stop."""
    deadline_s = time.monotonic() + STOP_S
    while (stat := read_stat(pid)) is not None and stat.state != "T":
        if not stat.is_alive:
            break
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{stat} did not stop within {STOP_S:g} s")
        time.sleep(POLL_S)
    if stat is None or not stat.is_alive:
        raise ProcessLookupError(f"process {pid} has ended")
