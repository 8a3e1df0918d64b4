"""Measures what benchfleet itself costs: start of the command, time besides server and load, memory
of the agent.

It runs one small job on the simulated engine through the installed commands, reads the events that
the job stored, and prints a table and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from fleet_agent.storage.journal import Journal
from fleet_protos import events as ev

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
JOB = ROOT / "benchmarks/overhead.yaml"
SAMPLE_S = 0.1
HELP_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `limit` 0: no limit; else the value must stay below it."""

    name: str
    value: float
    unit: str
    limit: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        return not self.limit or self.value < self.limit


@dataclass(frozen=True, slots=True)
class JobRun:
    """One `fleetctl run`: its start, its wall time and the largest resident memory of its agent."""

    started_unix_ns: int
    wall_s: float
    agent_rss_bytes: int


def help_seconds() -> Figure:
    """Measure the median wall time of `fleetctl --help`; the first start does not count."""
    taken = []
    for _ in range(HELP_REPEATS + 1):
        started = time.perf_counter()
        subprocess.run([SCRIPTS / "fleetctl", "--help"], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - started)
    return Figure("fleetctl --help", statistics.median(taken[1:]), "s", 0.3)


def run_job(state: Path) -> JobRun:
    """Run the job and sample its agent's memory.

    Raises RuntimeError with the command's output if the command fails.
    """
    env = dict(os.environ, BENCHFLEET_STATE=str(state))
    started_unix_ns, started, largest = time.time_ns(), time.perf_counter(), 0
    command = [str(SCRIPTS / "fleetctl"), "run", str(JOB)]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, env=env, stdout=output, stderr=output) as child,
    ):
        while True:
            largest = max(largest, agent_rss_bytes(child.pid))
            try:
                child.wait(SAMPLE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        wall_s = time.perf_counter() - started
        if child.returncode:
            output.seek(0)
            raise RuntimeError(
                f"fleetctl run ended with {child.returncode}:\n{output.read().decode()}"
            )
    return JobRun(started_unix_ns, wall_s, largest)


def agent_rss_bytes(pid: int) -> int:
    """Return the resident memory of the agent below the process `pid`; 0 while there is no
    agent.
    """
    try:
        for process in psutil.Process(pid).children():
            if "fleet_agent.main" in process.cmdline():
                return int(process.memory_info().rss)
    except psutil.Error:
        pass
    return 0


def stored_events(state: Path) -> list[ev.Event]:
    """Return all events of the job, in order, from its agent's journal."""
    journal = Journal.open(state / "agent" / "journal")
    try:
        return list(journal.events(0))
    finally:
        journal.close()


def server_and_load_seconds(history: Sequence[ev.Event]) -> tuple[float, float]:
    """Return the wall seconds of one trial for starting and stopping its server, and for its
    requests.
    """
    server = load = 0.0
    tokens_asked, time_scale = {}, 1.0
    for body in (event.body for event in history):
        match body:
            case ev.TrialAccepted(spec=spec):
                tokens_asked = {
                    workload.name: workload.output_tokens for workload in spec.workloads
                }
                time_scale = spec.engine.simulation.time_scale
            case ev.ServerReady(load_s=seconds) | ev.ServerStopped(took_s=seconds):
                server += seconds
            case ev.WarmedUp(workload=name, requests=requests, output_tok_s=rate) if rate:
                load += requests * tokens_asked[name] / rate / time_scale
            case ev.RunFinished(run=run):
                load += run.duration_s / run.time_scale
    return server, load


def overhead_figures(job: JobRun, events: Sequence[ev.Event]) -> list[Figure]:
    """Return where the wall time of the job went; the overhead is what server and load do not
    explain.
    """
    trials: dict[tuple[str, int], list[ev.Event]] = {}
    for event in events:
        trials.setdefault((event.trial_id, event.attempt), []).append(event)
    spent = [server_and_load_seconds(history) for history in trials.values()]
    server, load = sum(part for part, _ in spent), sum(part for _, part in spent)
    before = (events[0].time_unix_ns - job.started_unix_ns) / 1e9
    after = job.wall_s - (events[-1].time_unix_ns - job.started_unix_ns) / 1e9
    overhead = job.wall_s - server - load
    return [
        Figure(f"fleetctl run, {len(trials)} trials: wall", job.wall_s, "s"),
        Figure("  servers: load and stop", server, "s"),
        Figure("  load: warm-up and runs", load, "s"),
        Figure("  start of command, controller and agent", before, "s"),
        Figure(
            "  inside trials: Ray's start, proof, evidence, journal", overhead - before - after, "s"
        ),
        Figure("  after the last trial: Ray's end, agent's end, verdict", after, "s"),
        Figure("overhead: wall - servers - load", overhead, "s", 15),
        Figure("agent, largest resident memory", job.agent_rss_bytes / 1e6, "MB", 120),
    ]


def report(figures: Sequence[Figure], path: Path) -> None:
    """Print the table and write it as JSON, with a description of this machine."""
    for figure in figures:
        limit = (
            f"< {figure.limit:g} {figure.unit}" + ("" if figure.holds else "  EXCEEDED")
            if figure.limit
            else ""
        )
        print(f"{figure.name:56} {figure.value:8.2f} {figure.unit:3} {limit}")
    machine = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    document = {
        "engine": "simulated",
        "machine": machine,
        "figures": [asdict(figure) | {"holds": figure.holds} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"(simulated engine, {machine['cpus']} CPUs; also in {path})")


def main() -> int:
    """Measure and report; return 1 if a limit is exceeded."""
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parse.add_argument("--output", type=Path, default=ROOT / "benchmarks/latest.json")
    options = parse.parse_args()
    figures = [help_seconds()]
    with tempfile.TemporaryDirectory(prefix="benchfleet-bench-") as folder:
        job = run_job(Path(folder))
        figures += overhead_figures(job, stored_events(Path(folder)))
    report(figures, options.output)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
