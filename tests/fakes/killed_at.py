"""Owns killing a process at each of its looks at the disk in turn: `python killed_at.py CALL FOLDER
LIMIT`. Repairs nothing.

CALL is one of the names below. For each N a child does it on a fresh copy of what is in
FOLDER/before, and is killed by SIGKILL at its Nth audited event (open, rename, remove, mkdir …)
below the copy; the copies stay as FOLDER/N. Prints how many there are.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fleet_controller.pki.authority import Authority
from fleet_controller.pki.initialize import init_trust_folder


def _finish(folder: Path) -> None:
    Authority(folder).finish_replacing("me")


CALLS: dict[str, Callable[[Path], object]] = {
    "init": lambda folder: init_trust_folder(folder, "me"),
    "issue": lambda folder: Authority.open(folder).issue_agent("gpu01"),
    "revoke": lambda folder: Authority.open(folder).revoke("gpu01"),
    "rotate": lambda folder: Authority.open(folder).renew_controller(),
    "begin": lambda folder: Authority.open(folder).begin_replacing(),
    "finish": _finish,
}


def main(call: str, folder: Path, limit: int) -> int:
    """The number of copies; the last one was not killed."""
    for number in range(1, limit):
        copy = folder / str(number)
        shutil.copytree(folder / "before", copy)
        child = os.fork()
        if child == 0:
            _die_at(number, str(copy))
            CALLS[call](copy / "trust")
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            return number if os.WEXITSTATUS(status) == 0 else -number
        assert os.WTERMSIG(status) == signal.SIGKILL
    return -limit


def _die_at(number: int, below: str) -> None:
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if (event == "open" or event.startswith(("os.", "shutil."))) and any(
            below in str(argument) for argument in arguments
        ):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
