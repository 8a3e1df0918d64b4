"""Owns a launcher with children like SGLang's: FIFO CHILD… tells FIFO their ids, then hangs on
whatever happens to them, as up to 0.5.9.

A child is a title (`sglang::scheduler_TP1`), or `spawned`, which is what multiprocessing makes of a
child without one. `later:CHILD` is started at SIGUSR1, and told to FIFO then. The launcher exits
with 7 at SIGUSR2.
"""

from __future__ import annotations

import json
import os
import signal
import sys

SPAWNED = [
    sys.executable,
    "-S",
    "-c",
    "import signal; signal.pause() # from multiprocessing.spawn import spawn_main",
]


def start(child: str) -> int:
    """Fork it; its id once it has become what it is to be."""
    reading, writing = os.pipe()  # the exec closes the writing end
    pid = os.fork()
    if pid:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        return pid
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if child == "spawned":
        os.execv(sys.executable, SPAWNED)
    os.execv("/bin/sleep", [child, "600"])


def tell(fifo: str, pids: dict[str, int]) -> None:
    """Once to whoever opens FIFO."""
    with open(fifo, "w", encoding="ascii") as told:
        json.dump(pids, told)


def main() -> None:
    """Start the children, tell, and wait for signals."""
    fifo, children = sys.argv[1], sys.argv[2:]
    later = [child.removeprefix("later:") for child in children if child.startswith("later:")]
    signal.signal(signal.SIGUSR1, lambda *_: tell(fifo, {child: start(child) for child in later}))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(7))
    tell(fifo, {child: start(child) for child in children if not child.startswith("later:")})
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
