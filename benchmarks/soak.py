"""Runs many short trials for a long time and fails if something grows that should not.

A real controller and a real agent run trials on simulated servers, which take seconds each. The
benchmark samples the memory, descriptors and threads of each process and the space on disk, and
fits a line to each figure after a warm-up. `SOAK_MINUTES` (30) sets the duration. It prints a
table; --json also writes it to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.core.controller_api import is_job_over
from fleet_protos.errors import FleetError
from fleet_transport.sockets import listen_address

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: soak
model: {path: sim/kimi}
engine:
  {kind: simulated, gpus: 8, args: {tp_size: 8}, stop_timeout: 5s,
   simulation: {time_scale: 20, seed: 3}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: 400}}
measure: {launches: 10, runs: {min: 2, max: 2}, seed: 1}
"""
SAMPLE_S = 5.0
WARM_UP_SHARE = 0.3  # of the time, in which Ray, imports and caches settle
KEPT_MIB = 8
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a figure may grow after the warm-up: `once`, plus `per_trial` for what is stored of
    each trial.
    """

    once: float
    per_trial: float = 0.0
    unit: str = "MiB"

    def allowed(self, trials: int) -> float:
        """Return the allowed growth after so many trials, in the figure's unit."""
        return self.once + self.per_trial * trials


# A controller keeps its last jobs and one state per trial in memory, and everything on disk. An
# agent keeps the files that fit its budget on disk, and less than 1 KiB per trial in memory (the
# trial's id, and its folder while that is kept). In an agent's memory, the compilation of pynvml at
# the start leaves about 9 MiB of free gaps; protobuf returns them to the system after each 10,000
# messages, and later work touches them again.
LIMITS = {
    "agent memory": Limit(8, 0.003),
    "agent descriptors": Limit(4, unit=""),
    "agent threads": Limit(4, unit=""),
    "agent disk": Limit(KEPT_MIB + 8),
    "load memory": Limit(40, 0.02),
    "load processes": Limit(1, unit=""),
    "load disk": Limit(8, 0.01),
    "controller memory": Limit(8, 0.03),
    "controller descriptors": Limit(4, unit=""),
    "controller threads": Limit(4, unit=""),
    "controller disk": Limit(4, 0.25),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """All figures at one moment; `trials`: how many had ended by then."""

    at_s: float
    trials: int
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Growth:
    """The line fitted to one figure after the warm-up."""

    name: str
    first: float
    last: float
    growth: float
    allowed: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the figure grew no more than allowed."""
        return self.growth <= self.allowed


@dataclass
class Soak:
    """The processes, and what was observed of them."""

    folder: Path
    agent: subprocess.Popen[bytes]
    controller: subprocess.Popen[bytes]
    samples: list[Sample] = field(default_factory=list)
    trials: int = 0
    failures: list[str] = field(default_factory=list)

    def take_sample(self) -> None:
        """Record all figures at this moment."""
        agent, controller = psutil.Process(self.agent.pid), psutil.Process(self.controller.pid)
        load = [process for process in agent.children(recursive=True) if _is_load(process)]
        figures = {
            "agent memory": _memory(agent),
            "agent descriptors": agent.num_fds(),
            "agent threads": agent.num_threads(),
            "agent disk": _disk(self.folder / "agent"),
            "load memory": sum(map(_memory, load)),
            "load processes": len(load),
            "load disk": _disk(self.folder / "tmp"),
            "controller memory": _memory(controller),
            "controller descriptors": controller.num_fds(),
            "controller threads": controller.num_threads(),
            "controller disk": _disk(self.folder / "controller"),
        }
        self.samples.append(Sample(time.monotonic(), self.trials, figures))


def _is_load(process: psutil.Process) -> bool:
    """Return whether a process belongs to the load process or its Ray; simulated servers do not."""
    try:
        return (
            not any("fleet_simulator" in word for word in process.cmdline())
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _memory(process: psutil.Process) -> float:
    """Return the MiB that the process has written; pages of mapped files do not count."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))
        / 1024
    )


def _disk(folder: Path) -> float:
    """Return the MiB that the files in a folder take."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(place) / name).st_blocks * 512
            except OSError:
                continue
    return total / MIB


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Soak, ControllerClient]]:
    """Run a controller and its agent inside the block."""
    (folder / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(folder / "tmp")}
    agent_state, controller_state = folder / "agent", folder / "controller"
    agent_flags = (
        *("--state", str(agent_state), "--host-name", "soak"),
        *("--gpus", "0", "--keep-files", str(KEPT_MIB)),
    )
    agent = _start(folder / "agent.log", env, "fleet_agent.main", *agent_flags)
    controller_flags = (
        *("--state", str(controller_state)),
        *("--agent", listen_address(agent_state, "agent")),
    )
    controller = _start(
        folder / "controller.log", env, "fleet_controller.app.main", *controller_flags
    )
    try:
        async with ControllerClient(listen_address(controller_state, "controller")) as remote:
            await _wait_connected(remote)
            yield Soak(folder, agent, controller), remote
    finally:
        for process in (controller, agent):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)


def _start(log: Path, env: dict[str, str], module: str, *flags: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *flags],
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
        )


async def _wait_connected(remote: ControllerClient) -> None:
    for _ in range(600):
        try:
            if (await remote.hosts())[0].state == "connected":
                return
        except FleetError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the controller did not connect to the agent within 60 s: see their logs")


async def work(soak: Soak, remote: ControllerClient, until_s: float) -> None:
    """Run one job after the other until the time is over."""
    while time.monotonic() < until_s:
        job_id, before = await remote.submit(JOB, "soak.yaml"), soak.trials
        async for change in remote.watch(job_id):
            soak.trials = before + change.job.trials_over
            if time.monotonic() >= until_s and not is_job_over(change.job):
                await remote.cancel(job_id)
        # A run that a gate voided shows a busy machine, not a failure of the product.
        trials = (await remote.job(job_id)).trials
        failed = [
            trial
            for trial in trials
            if trial.outcome.name == "FAILED" and trial.kind.name != "GATE_VOIDED"
        ]
        soak.failures += [
            f"{trial.trial_id}: {trial.failure_class}: {trial.message}" for trial in failed
        ]


async def work_and_sample(soak: Soak, remote: ControllerClient, seconds: float) -> None:
    """Run jobs and take a sample every few seconds."""
    until_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work(soak, remote, until_s))
        while not working.done():
            await asyncio.to_thread(soak.take_sample)
            await asyncio.wait({working}, timeout=SAMPLE_S)


def fit_growth(samples: Sequence[Sample]) -> list[Growth]:
    """Fit a line to each figure from the end of the warm-up on; return nothing for fewer than 8
    samples.
    """
    began_s, ended_s = samples[0].at_s, samples[-1].at_s
    steady = [
        sample for sample in samples if sample.at_s >= began_s + WARM_UP_SHARE * (ended_s - began_s)
    ]
    if len(steady) < 8:
        return []
    trials = steady[-1].trials - steady[0].trials
    times = [sample.at_s for sample in steady]
    return [
        _row(name, limit, times, [sample.figures[name] for sample in steady], trials)
        for name, limit in LIMITS.items()
    ]


def _row(name: str, limit: Limit, times: list[float], values: list[float], trials: int) -> Growth:
    slope, start = statistics.linear_regression(times, values)
    first, last = start + slope * times[0], start + slope * times[-1]
    return Growth(name, first, last, last - first, limit.allowed(trials), limit.unit)


def render_table(soak: Soak, rows: Sequence[Growth], seconds: float) -> str:
    """Return the table as text."""
    head = (
        f"{soak.trials} trials in {seconds / 60:.1f} min, {len(soak.failures)} failed;"
        f" after the first {WARM_UP_SHARE:.0%}:"
    )
    lines = [head, "", f"{'':<24}{'first':>12}{'last':>12}{'growth':>12}{'allowed':>12}"]
    for row in rows:
        numbers = "".join(
            f"{value:>12.2f}" for value in (row.first, row.last, row.growth, row.allowed)
        )
        lines.append(f"{row.name:<24}{numbers} {row.unit}{'' if row.holds else '   GROWS'}")
    return "\n".join(lines)


async def soak(minutes: float, place: Path) -> tuple[Soak, list[Growth], float]:
    """Run everything; the logs stay in `place` until its owner removes them."""
    began_s = time.monotonic()
    async with running(place) as (seen, remote):
        await work_and_sample(seen, remote, minutes * 60)
    return seen, fit_growth(seen.samples), time.monotonic() - began_s


def main(
    folder: Callable[[], tempfile.TemporaryDirectory[str]] = tempfile.TemporaryDirectory,
) -> int:
    """Run the benchmark; return 1 if something grew or a trial failed."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or 30))
    parse.add_argument("--json", type=Path, default=None, help="write the figures there too")
    options = parse.parse_args()
    with folder() as name:
        seen, rows, seconds = asyncio.run(soak(options.minutes, Path(name)))
        print(render_table(seen, rows, seconds))
        grew = [row.name for row in rows if not row.holds]
        print("\n".join(seen.failures))
    if options.json:
        figures = [
            {"at_s": sample.at_s - seen.samples[0].at_s, "trials": sample.trials, **sample.figures}
            for sample in seen.samples
        ]
        report = {
            "minutes": options.minutes,
            "trials": seen.trials,
            "failures": seen.failures,
            "rows": list(map(asdict, rows)),
        }
        options.json.write_text(json.dumps({**report, "samples": figures}, indent=1))
    print(f"GROWS: {', '.join(grew)}" if grew else "nothing grows beyond what is stored")
    return int(bool(grew) or bool(seen.failures) or not rows)


if __name__ == "__main__":
    sys.exit(main())
