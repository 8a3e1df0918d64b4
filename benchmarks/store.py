"""Measures the controller's store with 10,000 trials: writing events, opening, listing, and the
cost of one more event.

It prints a table.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.full_store import HOSTS, finished_events, make_spec
from fleet_controller.core.schedule_inputs import SchedulableHost
from fleet_controller.core.scheduler import next_starts
from fleet_controller.core.trial_state import Attempt
from fleet_controller.jobs.indexed_job import SeenTrials, job_change
from fleet_controller.jobs.queries import ReadOnlyController
from fleet_controller.jobs.state_writer import StateWriter
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import TrialSpec

TRIALS = 10_000
FINISHED = 500  # trials that have their events and runs


def timed(label: str, work: Callable[[], object], times: int = 1) -> None:
    """Print how long `work` took, divided by `times`."""
    began_s = time.perf_counter()
    work()
    took_s = (time.perf_counter() - began_s) / times
    print(f"{label:<58} {took_s * 1000:>10.2f} ms")


def fill(store: Store, specs: list[TrialSpec]) -> None:
    """Submit the job and store the events of its finished trials."""
    timed(
        f"submit one job of {TRIALS} trials",
        lambda: store.add_job(JobRow("big", "big", "", "", 1, "simulated", 20.0, 60.0), specs),
    )
    finished = specs[:FINISHED]
    for trial in finished:
        store.save_attempt([trial.trial_id], Attempt(1))
    events = [
        (trial.host, event)
        for number, trial in enumerate(finished)
        for event in finished_events(trial, 1 + number * 7)
    ]
    results: list[Attempt | None] = []
    timed(
        "store one event, fsync included",
        lambda: results.extend(store.record_event(host, host, event) for host, event in events),
        len(events),
    )
    if None in results:
        raise RuntimeError(
            f"the store rejected {results.count(None)} of {len(events)} events:"
            " nothing was measured"
        )


async def work(store: Store, specs: list[TrialSpec]) -> None:
    """Do what a running controller does at its start and at each event."""
    writer = StateWriter(store, RunSeries())
    began_s = time.perf_counter()
    await writer.load()
    print(
        f"{'a controller reads its open jobs':<58}"
        f" {(time.perf_counter() - began_s) * 1000:>10.2f} ms"
    )
    index, hosts = writer.job_index, [SchedulableHost(f"host-{number}") for number in range(HOSTS)]
    seen: SeenTrials = {}
    job_change(index.jobs["big"], seen)
    waiting = [job.waiting for job in index.open_jobs]
    timed(
        "schedule after an event, 100 hosts",
        lambda: [next_starts(waiting, hosts, 1) for _ in range(5)],
        5,
    )
    timed(
        "report an event to one watcher",
        lambda: [job_change(index.jobs["big"], seen) for _ in range(5)],
        5,
    )
    timed(
        "apply an event to the job index",
        lambda: [index.update_attempt(specs[-1].trial_id, Attempt(1)) for _ in range(1000)],
        1000,
    )
    writer.close()


def main() -> int:
    """Run everything in a temporary folder."""
    specs = [make_spec("big", number) for number in range(TRIALS)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store.sqlite3")
        store = Store.open(path)
        fill(store, specs)
        store.close()
        timed("open the store", lambda: Store.open(path).close())
        reader = Store.open(path, read_only=True)
        jobs = ReadOnlyController(reader, Path(folder))
        timed("fleetctl ls", lambda: asyncio.run(jobs.jobs()))
        timed("fleetctl show", lambda: asyncio.run(jobs.job("big")))
        timed("fleetctl compare: read the runs", lambda: reader.runs("big"))
        reader.close()
        store = Store.open(path)
        asyncio.run(work(store, specs))
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
