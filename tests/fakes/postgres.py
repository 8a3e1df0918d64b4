"""Runs a private PostgreSQL server where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def run_postgres() -> Iterator[str]:
    """URL of a private server on a Unix socket, run as `nobody` when we are root (it refuses to run
    as root); empty without one.
    """
    binaries = postgres_binaries()
    if binaries is None:
        yield ""
        return
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/bf-pg-XXXXXX"], text=True).strip())
    user = (
        ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        if os.getuid() == 0
        else []
    )
    if user:
        shutil.chown(folder, "nobody", "nogroup")
    data = folder / "data"
    make = [*user, binaries / "initdb", "-D", data, "-U", "bench", "--no-sync", "-A", "trust"]
    subprocess.run(make, check=True, capture_output=True, cwd="/")
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    start = [
        *user,
        binaries / "pg_ctl",
        "-D",
        data,
        "-o",
        options,
        "-l",
        folder / "log",
        "-w",
        "start",
    ]
    subprocess.run(start, check=True, capture_output=True, cwd="/")
    try:
        yield f"postgresql+psycopg://bench@/postgres?host={folder}"
    finally:
        subprocess.run(
            [*user, binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"],
            check=True,
            capture_output=True,
            cwd="/",
        )
        shutil.rmtree(folder)
