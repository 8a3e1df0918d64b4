"""Owns a process that behaves as badly as real servers do: FIFO TRAIT… tells FIFO the ids of its
processes, then waits for a signal.

Traits: ignore_term; deaf, which lets only the children ignore it; child, which forks; own_session,
a child that leads a session of its own; bare, a child in a session of its own without the
environment, its output still the log; stranger, the same with its output elsewhere; nameless, a
child that stays in the session without the environment and with its output elsewhere; leave, which
exits once the others run; loud, which prints 10 MB; exit, which exits with 3 and tells nobody.

Escapes: daemon, a grandchild whose parent has ended, in a session of its own, without environment,
output, name or end by SIGTERM; chain, the same as a chain of processes in which each forks the next
and ends, so that no process id lasts. The chain holds FIFO.chain open for writing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

LINK_LIVES_S = 0.001
ESCAPED_LIVES_S = 60  # so that a test that fails leaves nothing behind for long
WAIT = """
import os, signal, sys
if "ignore_term" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.close(int(sys.argv[1]))  # its parent reads the end of it
signal.pause()
"""


def start_child(trait: str, traits: list[str]) -> int:
    """Fork a child of that trait and return its id once it has become what it is to be."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        return pid
    if trait in ("own_session", "bare", "stranger"):
        os.setsid()
    if trait in ("stranger", "nameless"):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
    ignore = ["ignore_term"] if {"ignore_term", "deaf"} & {*traits} else []
    env = {} if trait in ("bare", "stranger", "nameless") else dict(os.environ)
    os.set_inheritable(writing, True)
    os.execve(sys.executable, [sys.executable, "-S", "-c", WAIT, str(writing), *ignore], env)


def start_daemon() -> int:
    """Start the grandchild that escapes and return its id."""
    reading, writing = os.pipe()
    between = os.fork()
    if between:
        os.close(writing)
        os.waitpid(between, 0)
        pid = int(os.read(reading, 16))
        os.read(reading, 1)  # the end: it has become what it is to be
        os.close(reading)
        return pid
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writing, str(os.getpid()).encode())
    signal.alarm(ESCAPED_LIVES_S)  # execve keeps it
    os.closerange(0, writing)
    os.set_inheritable(writing, True)
    os.execve(sys.executable, ["[kworker/u8:3]", "-S", "-c", WAIT, str(writing), "ignore_term"], {})


def start_chain(fifo: str) -> None:
    """Start the chain of processes, and return once its first link runs."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    held = os.open(fifo, os.O_WRONLY)
    os.closerange(0, held)
    if os.fork():
        os._exit(0)
    end_s = time.monotonic() + ESCAPED_LIVES_S
    while time.monotonic() < end_s:
        time.sleep(LINK_LIVES_S)
        if os.fork():
            os._exit(0)
    os._exit(0)


def main() -> None:
    """Start the children asked for, tell, and wait."""
    fifo, traits = sys.argv[1], sys.argv[2:]
    if "exit" in traits:
        sys.exit(3)
    if "ignore_term" in traits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "loud" in traits:
        for _ in range(10):
            sys.stdout.write("x" * (1024 * 1024 - 1) + "\n")
        sys.stdout.flush()
    kinds = ("child", "own_session", "bare", "stranger", "nameless")
    pids = [os.getpid(), *(start_child(trait, traits) for trait in traits if trait in kinds)]
    pids += [start_daemon() for trait in traits if trait == "daemon"]
    if "chain" in traits:
        start_chain(f"{fifo}.chain")
    with open(fifo, "w", encoding="ascii") as told:
        json.dump({"pids": pids, "env": dict(os.environ)}, told)
    if "leave" not in traits:
        signal.pause()


if __name__ == "__main__":
    main()
