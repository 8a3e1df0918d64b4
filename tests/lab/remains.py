"""Owns the end of a lab: removes every process, link, mount and file of one, whoever made it and
however its session died.

Run as a program with a lab's folder it waits for the owner's end and removes the lab then. Knows
standard modules alone: it starts fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.lab.programs import variables

ROOT = Path("/run/benchfleet-lab")
NAMESPACES = Path("/run/netns")
GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"))
GONE_S = 10.0


def prefix(number: int) -> str:
    """What the names of all links and network namespaces of lab `number` begin with."""
    return f"bl{number}h"


def table(number: int) -> str:
    """The name of a lab's nft table in the bridge family."""
    return f"benchfleet_lab_{number}"


def group(number: int) -> str:
    """The branch of the control groups that holds a lab's systemds."""
    return f"benchfleet_lab_{number}"


def start_ticks(pid: int) -> str:
    """When a process was started, in clock ticks since boot: with the id it names one process for
    ever. Empty: there is none.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def owner_of(folder: Path) -> int | None:
    """The process id of the session that owns a lab, None when it has ended or never said."""
    with contextlib.suppress(OSError, ValueError):
        pid, ticks = (folder / "owner").read_text().split()
        return int(pid) if start_ticks(int(pid)) == ticks else None
    return None


def network_of(pid: int) -> int:
    """The inode of a process's network namespace, 0 when it is gone."""
    return _inode(f"/proc/{pid}/ns/net")


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def all_pids() -> Iterator[int]:
    """Every process id there is."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def processes_of(folder: Path) -> list[int]:
    """Processes in one of a lab's network namespaces, or started with its folder in their
    arguments; never this one.
    """
    begin = prefix(int(folder.name))
    networks = {_inode(str(path)) for path in NAMESPACES.glob(f"{begin}[0-9]*")} - {0}
    return sorted(
        {pid for pid in all_pids() if network_of(pid) in networks} - {os.getpid()}
        | set(processes_with(f"{folder}/"))
    )


def processes_with(*words: str) -> list[int]:
    """Processes whose arguments hold all these texts; never this one."""
    return [
        pid
        for pid in all_pids()
        if pid != os.getpid() and all(word.encode() in _arguments(pid) for word in words)
    ]


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def end(pids: list[int]) -> None:
    """Kill processes and wait until they are gone, bounded."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while any(start_ticks(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)


def links_of(number: int) -> list[str]:
    """Names of a lab's network links in this namespace, its bridge last."""
    ours = [name for name in os.listdir("/sys/class/net") if name.startswith(prefix(number))]
    return ours + [name for name in [f"bl{number}"] if name in os.listdir("/sys/class/net")]


def mounts_below(folder: Path) -> list[str]:
    """Mount points of this namespace at or below `folder`, the deepest first."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [point for point in reversed(list(points)) if point.startswith(f"{folder}/")]


def remove(folder: Path) -> None:
    """End one lab whole. Harmless when it has ended already, or half of it."""
    number = int(folder.name)
    end(processes_of(folder))
    for name in links_of(number):
        _quiet("ip", "link", "delete", name)
    for path in NAMESPACES.glob(f"{prefix(number)}[0-9]*"):
        _quiet("ip", "netns", "delete", path.name)
    _quiet("nft", "delete", "table", "bridge", table(number))
    for point in mounts_below(folder):
        _quiet("umount", "--lazy", point)
    for tree in GROUPS:
        remove_groups(tree / group(number))
    if not mounts_below(folder):
        shutil.rmtree(folder, ignore_errors=True)


def remove_groups(branch: Path) -> None:
    """Remove a branch of control groups from its leaves on; one that still holds a process stays."""
    for path, _, _ in os.walk(branch, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _quiet(*argv: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(
            argv, env=variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Nobody else takes a lab's number or gives one back meanwhile."""
    ROOT.mkdir(mode=0o700, exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_ownerless() -> list[Path]:
    """Remove the labs whose session has ended, `alone`; returns their folders."""
    ended = [folder for folder in ROOT.glob("[0-9]*") if owner_of(folder) is None]
    for folder in ended:
        remove(folder)
    return ended


def await_owner(folder: Path) -> None:
    """Block until the session that owns a lab has ended."""
    pid = owner_of(folder)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        if owner_of(folder) == pid:
            select.select([descriptor], [], [])


if __name__ == "__main__":
    await_owner(Path(sys.argv[1]))
    with alone():
        remove_ownerless()
