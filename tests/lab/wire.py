"""Owns a slow wire: passes Ethernet frames between two taps, each later by a delay, in their order.
Joins the taps to nothing.

A program of its own, since many kernels lack netem. Arguments: the names of both taps, delay and
jitter in ms, the folder of its lab.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x0002 | 0x1000
FRAMES_AT_ONCE = 64
QUEUE_FRAMES = 20_000  # what a switch would hold; more is lost


def open_tap(name: str) -> int:
    """A descriptor of a new tap that lives as long as this process."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return descriptor


class Direction:
    """Frames on their way from one tap to the other."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.waiting: deque[tuple[float, bytes]] = deque()

    def take(self, delay_s: float, jitter_s: float) -> None:
        """Read what has come, and note when it leaves: never before what came earlier."""
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(self.source, 65536)
            except BlockingIOError:
                return
            due = time.monotonic() + delay_s + random.uniform(-jitter_s, jitter_s)
            due = max(due, self.waiting[-1][0]) if self.waiting else due
            if len(self.waiting) < QUEUE_FRAMES:
                self.waiting.append((due, frame))

    def give(self, now: float) -> None:
        """Write what is due."""
        while self.waiting and self.waiting[0][0] <= now:
            with contextlib.suppress(
                OSError
            ):  # the other end is down: as on a real wire, it is lost
                os.write(self.target, self.waiting.popleft()[1])


def main() -> None:
    """Pass frames until a tap is taken away."""
    one, other = open_tap(sys.argv[1]), open_tap(sys.argv[2])
    delay_s, jitter_s = float(sys.argv[3]) / 1000, float(sys.argv[4]) / 1000
    ways = {one: Direction(one, other), other: Direction(other, one)}
    while True:
        due = min((way.waiting[0][0] for way in ways.values() if way.waiting), default=None)
        readable, _, _ = select.select(
            list(ways), [], [], None if due is None else max(due - time.monotonic(), 0.0)
        )
        for source in readable:
            ways[source].take(delay_s, jitter_s)
        for way in ways.values():
            way.give(time.monotonic())


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        main()
