"""Measures a scheduling decision with 10,000 waiting trials over 200 hosts, without store and
agents.

    python benchmarks/scheduling.py

Columns: jobs × trials, the first decision (all hosts free), one after a trial ended (one host
free), one with no host free; milliseconds, median and worst of 200.
"""

from __future__ import annotations

import statistics
import time

from fleet_controller.core.job import HostChoice
from fleet_controller.core.schedule_inputs import SchedulableHost
from fleet_controller.core.scheduler import TrialStart, next_starts
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.jobs.job_index import JobIndex
from fleet_controller.store.rows import JobRow
from fleet_protos.trial_types import EngineKind, EngineSpec, Outcome, Phase, TrialSpec

HOSTS = 200
ENGINE = EngineSpec(EngineKind.SIMULATED, gpus=8)
GPUS = {EngineKind.SIMULATED: 8}
CASES = (
    (1, 10_000, False),
    (100, 100, False),
    (10_000, 1, False),
    (1, 10_000, True),
    (100, 100, True),
)


def make_job_index(jobs: int, trials: int, any_host: bool) -> JobIndex:
    """Return an index of jobs in blocks of four variants.

    Each trial is pinned to a host in turn, or its block may run on any host.
    """
    index = JobIndex()
    choice = HostChoice(every_host=not any_host).to_json()
    for job in range(jobs):
        name = f"job{job}"
        hosts = [
            f"host{(number // 4 + job) % HOSTS:03d}" if not any_host else ""
            for number in range(trials)
        ]
        specs = [
            TrialSpec(f"{name}-{n}", 1, name, name, f"v{n % 4}", {}, n // 4 + 1, hosts[n], ENGINE)
            for n in range(trials)
        ]
        index.add(
            JobRow(name, name, "", "", job, "simulated", 1.0, 600.0, placement=choice),
            [Trial(spec) for spec in specs],
        )
    return index


def decide(index: JobIndex) -> tuple[tuple[TrialStart, ...], float]:
    """Decide as the controller's loop does between two events; return the starts and the
    milliseconds.
    """
    began_s = time.perf_counter()
    list(index.newly_hopeless())
    running = index.running_by_host()
    names = (f"host{number:03d}" for number in range(HOSTS))
    hosts = [
        SchedulableHost(name, {}, "", len(running.get(name, ())), False, GPUS, GPUS)
        for name in names
    ]
    starts = next_starts((job.waiting for job in index.open_jobs), hosts, 10**18)
    return starts, (time.perf_counter() - began_s) * 1e3


def apply_starts(index: JobIndex, starts: tuple[TrialStart, ...]) -> list[str]:
    """Record the starts in the index; return the ids of their trials."""
    for start in starts:
        index.assign_hosts(index.specs_for_start(start))
        index.update_attempt(start.trial_id, Attempt(start.attempt))
    return [start.trial_id for start in starts]


def main() -> None:
    """Print one line for each case."""
    for jobs, trials, any_host in CASES:
        index = make_job_index(jobs, trials, any_host)
        starts, first_ms = decide(index)
        active, one_ms, none_ms = apply_starts(index, starts), [], []
        for number in range(200):
            none_ms.append(decide(index)[1])
            index.update_attempt(
                active[number],
                Attempt(
                    1, "a", Phase.OVER, Outcome.OK, started_unix_ns=1, ended_unix_ns=60 * 10**9
                ),
            )
            starts, took_ms = decide(index)
            one_ms.append(took_ms)
            active += apply_starts(index, starts)
        placed = "any_host" if any_host else "pinned"
        columns = [
            f"{statistics.median(taken):.2f} (max {max(taken):.1f})" for taken in (one_ms, none_ms)
        ]
        print(
            f"{jobs:>6} × {trials:<6} {placed:8}  first {first_ms:6.1f}"
            f"  one free {columns[0]:20}  none free {columns[1]}"
        )


if __name__ == "__main__":
    main()
