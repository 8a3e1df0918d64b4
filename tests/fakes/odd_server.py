"""Owns a process that behaves as badly as real servers do: FIFO TRAIT… tells FIFO the ids of its
processes, then waits for a signal.

Traits: ignore_term; deaf, which lets only the children ignore it; child, which forks; own_session,
a child that leads a session of its own; bare, a child in a session of its own without the
environment, its output still the log; stranger, the same with its output elsewhere; nameless, a
child that stays in the session without the environment and with its output elsewhere; leave, which
exits once the others run; loud, which prints 10 MB; exit, which exits with 3 and tells nobody.
"""

from __future__ import annotations

import json
import os
import signal
import sys

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
    with open(fifo, "w", encoding="ascii") as told:
        json.dump({"pids": pids, "env": dict(os.environ)}, told)
    if "leave" not in traits:
        signal.pause()


if __name__ == "__main__":
    main()
