"""Owns the programs that lab hosts are made with: where they are, how they are called, what is
missing. Makes no host.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
LAYER = CACHE / "benchfleet/lab"  # unpacked by tools/lab_programs.sh
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = (
    "ip",
    "tc",
    "nft",
    "sshd",
    "systemd-nspawn",
    "unshare",
    "nsenter",
    "setpriv",
    "setsid",
    "mount",
    "pivot_root",
)
TRIAL = ("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "sh", "-ec")
TRIED = """
ip link add trial type bridge
mount -t tmpfs trial /tmp && mkdir /tmp/upper /tmp/work /tmp/root
mount -t overlay trial -o lowerdir=/,upperdir=/tmp/upper,workdir=/tmp/work /tmp/root
test -c /dev/net/tun
echo trial >/proc/sys/kernel/hostname
"""


class LabTrouble(Exception):
    """A program that makes, breaks or mends a lab host failed; the message holds its command and
    what it said.
    """


@functools.cache
def variables() -> dict[str, str]:
    """The environment of the programs that make hosts: theirs alone, nothing of the test session's."""
    path = ":".join([SYSTEM_PATH, *(f"{LAYER}/usr/{name}" for name in ("sbin", "bin"))])
    libraries = [
        str(folder)
        for pattern in ("", "/systemd")
        for folder in LAYER.glob(f"usr/lib/*-linux-gnu{pattern}")
    ]
    return {
        "PATH": path,
        "LD_LIBRARY_PATH": ":".join(libraries),
        "LC_ALL": "C.UTF-8",
        "HOME": "/",
        "XDG_CACHE_HOME": str(CACHE),
    }


def call(argv: Sequence[str], script: str = "", timeout_s: float = 30.0) -> str:
    """What a program printed, `script` on its standard input; LabTrouble when it fails."""
    done = subprocess.run(
        argv,
        input=script,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd="/",
    )
    if done.returncode:
        raise LabTrouble(
            f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}\n{script}"
        )
    return done.stdout


def detach(argv: Sequence[str], log: Path, extra: dict[str, str] | None = None) -> None:
    """Start a program that belongs to no session and no parent here: what a lab starts must not
    look like a test's child.
    """
    with log.open("ab") as console:
        started = subprocess.run(
            ["setsid", "--fork", *argv],
            env={**variables(), **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            check=False,
            cwd="/",
            timeout=30,
        )
    if started.returncode:
        raise LabTrouble(f"{' '.join(argv)}: {log.read_text(errors='replace')}")


@functools.cache
def obstacle() -> str:
    """Why no lab can be made on this machine, in words for a reader; empty when it can."""
    if os.geteuid() != 0:
        return "lab hosts need root: sudo make test-lab"
    path = variables()["PATH"]
    missing = [name for name in NEEDED if not shutil.which(name, path=path)]
    if missing:
        return f"lab hosts need {', '.join(missing)}: tools/lab_programs.sh gets them on Debian"
    try:
        call([*TRIAL, TRIED])
    except LabTrouble as error:
        return f"this machine does not let root make namespaces, bridges and overlays (a container without privileges?): {error}"
    return ""
