"""Measures how soon a controller serves again on a store with 10,000 trials, and how fast `ls` and
`show` are then.

It measures twice: with ten jobs whose trials are all over, and with one job whose 10,000 trials all
wait, which is the most that a start may have to read. It prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.full_store import add_finished_job, make_spec
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store

TRIALS = 10_000
LIMIT_S = 5.0


@contextmanager
def running_controller(state: Path) -> Iterator[float]:
    """Run a `fleet-controller` on that state; yield the seconds from its start until it listens."""
    argv = (
        sys.executable,
        "-m",
        "fleet_controller.app.main",
        "--state",
        str(state),
        "--agent",
        f"unix:{state}/nobody.sock",
    )
    began_s = time.perf_counter()
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=state)
    assert process.stderr is not None
    try:
        while "listening on" not in (line := process.stderr.readline()):
            assert line, "the controller ended before it listened"
        yield time.perf_counter() - began_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def command_s(state: Path, *words: str) -> float:
    """Return the wall seconds of one fleetctl command, its start included."""
    began_s = time.perf_counter()
    env = {**os.environ, "BENCHFLEET_STATE": str(state.parent)}
    subprocess.run(
        [sys.executable, "-m", "fleet_controller.cli.main", *words],
        env=env,
        check=True,
        capture_output=True,
        cwd=state,
    )
    return time.perf_counter() - began_s


def fill_finished_jobs(store: Store) -> str:
    """Add ten jobs that are all over; return the id of one."""
    following = 1
    for number in range(10):
        following = add_finished_job(store, f"job-{number}", TRIALS // 10, following)
    return "job-3"


def fill_waiting_job(store: Store) -> str:
    """Add one job whose trials all wait; return its id."""
    store.add_job(
        JobRow("big", "big", "", "", 1, "simulated", 20.0, 60.0),
        [make_spec("big", number) for number in range(TRIALS)],
    )
    return "big"


def measure_start(fill: Callable[[Store], str]) -> dict[str, float]:
    """Return the seconds until the controller serves, and those of `ls` and of `show`."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "controller"
        store = Store.open(str(state / "store.sqlite3"))
        job_id = fill(store)
        store.close()
        with running_controller(state) as serving_s:
            return {
                "serving_s": serving_s,
                "ls_s": command_s(state, "ls"),
                "show_s": command_s(state, "show", job_id),
            }


def main() -> int:
    """Measure both stores; return 1 if a start took longer than the limit."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--json", type=Path, default=None, help="write the figures there too")
    options = parse.parse_args()
    rows = {
        "ten jobs, all over": measure_start(fill_finished_jobs),
        "one job, all waiting": measure_start(fill_waiting_job),
    }
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, {TRIALS} trials\n\n"
        f"{'':<24}{'serving':>10}{'ls':>10}{'show':>10}"
    )
    for name, row in rows.items():
        print(f"{name:<24}" + "".join(f"{seconds:>8.2f} s" for seconds in row.values()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["serving_s"] > LIMIT_S for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
