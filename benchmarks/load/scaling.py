"""Measures the throughput of two shards next to that of one, if their cores are free, and the CPU
time per token.

    python -m benchmarks.load.scaling [--repeats 3] [--json FILE]     table, JSON object, sentence

Two shards get twice the streams of one, in turns (one, two, two, one). `paced` is a load that one
shard and the server carry with ease, `burst` all that they can. A machine resolves the ratio of
throughputs only with two cores besides those that the server and all other processes use. CPU time
does not need free cores: shards that share no hot path use as much of it for a token as one shard
does, so two free cores would yield 2 × (CPU time per token of one) ÷ (that of two) times the
throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.load import programs
from benchmarks.load.loaded import LoadClient, find_child, load_client, watch_cpu
from benchmarks.load.programs import SERVER_CORE, MissingRequirement, Pace
from fleet_protos.trial_types import Workload

TARGET_RATIO: Final = 1.7
CORE_TOLERANCE: Final = 0.1  # how much of two free cores may be missing
SHARDS: Final = (1, 2)
TOKENS: Final = 200


@dataclass(frozen=True, slots=True)
class Scene:
    """How the server responds, and the load of one shard; two shards get twice the load."""

    pace: Pace
    streams: int
    requests: int
    tokens: int


SCENES: Final = {
    "paced": Scene(Pace(), 96, 384, TOKENS),
    "burst": Scene(Pace(0, 0), 32, 1600, TOKENS),
}


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """One run. Cores are means over it: the shards', the server's, all others', and those the
    hypervisor gave away.
    """

    tok_s: float
    us_per_token: float
    shards_cores: float
    server_cores: float
    others_cores: float
    steal_cores: float

    def free_cores(self, cores: int) -> float:
        """Return how many cores no other process used: the shards' own and idle ones."""
        return cores - self.server_cores - self.others_cores - self.steal_cores


async def run(
    client: LoadClient, program: Path, folder: Path, name: str, shards: int
) -> ScalingRun:
    """Run a scene once with so many shards, and record who used the machine."""
    scene = SCENES[name]
    workload = Workload(
        name,
        concurrency=scene.streams * shards,
        requests=scene.requests * shards,
        output_tokens=scene.tokens,
        prompts="builtin:chat",
        api="chat",
        request_timeout_s=300,
    )
    with programs.truth_server(program, folder, scene.pace) as server:
        async with watch_cpu(find_child("truth")) as watch:
            reply, _, _ = await client.run(server.url, workload)
    cpu_s, cores = (
        float(reply.facts["client_cpu_s"]),
        watch.mean_cores(reply.started_unix_ns, reply.duration_s),
    )
    ours = cpu_s / reply.duration_s
    others = max(0.0, cores.busy_s - ours - cores.server_s)
    return ScalingRun(
        reply.metrics["output_tok_s"],
        1e6 * cpu_s / reply.output_tokens,
        ours,
        cores.server_s,
        others,
        cores.steal_s,
    )


async def measure(folder: Path, repeats: int) -> Mapping[str, Mapping[int, ScalingRun]]:
    """Return the medians by scene and shards.

    Raises MissingRequirement without a C compiler or a second core.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise MissingRequirement("two shards need two cores; this process may use one")
    others = [core for core in cores if core != cores[SERVER_CORE % len(cores)]]
    where = {1: frozenset(others[:1]), 2: frozenset(others[:2] if len(others) > 1 else cores)}
    program = programs.build(folder, "truth")
    found: dict[str, dict[int, list[ScalingRun]]] = {
        name: {shards: [] for shards in SHARDS} for name in SCENES
    }
    async with AsyncExitStack() as stack:
        clients = {
            shards: await stack.enter_async_context(
                load_client(folder / str(shards), where[shards])
            )
            for shards in SHARDS
        }
        for repeat in range(-1, repeats):  # the first of each is a warm-up
            for shards in SHARDS if repeat % 2 else reversed(SHARDS):
                for name in SCENES:
                    took = await run(clients[shards], program, folder, name, shards)
                    if repeat >= 0:
                        found[name][shards].append(took)
    return {
        name: {shards: _median(took) for shards, took in of.items()} for name, of in found.items()
    }


def _median(took: Sequence[ScalingRun]) -> ScalingRun:
    return ScalingRun(
        **{name: statistics.median(asdict(one)[name] for one in took) for name in asdict(took[0])}
    )


def ratio_by_cpu(found: Mapping[int, ScalingRun]) -> float:
    """Return the throughput ratio that CPU times predict.

    It assumes a core for each shard and a server that keeps up.
    """
    return 2 * found[1].us_per_token / found[2].us_per_token


def summary(found: Mapping[str, Mapping[int, ScalingRun]], cores: int) -> str:
    """Return what the figures say about two shards, or that cores are missing to say it."""
    burst = found["burst"]
    free, ratio = burst[2].free_cores(cores), burst[2].tok_s / burst[1].tok_s
    cpu = ", ".join(f"{ratio_by_cpu(of):.2f}x by {name}" for name, of in found.items())
    if free < 2 - CORE_TOLERANCE:
        used = (
            f"the server used {burst[2].server_cores:.2f}, others {burst[2].others_cores:.2f},"
            f" the hypervisor {burst[2].steal_cores:.2f}"
        )
        return (
            f"two shards >= {TARGET_RATIO}x: not resolvable here: of {cores} cores {used},"
            f" so {free:.2f} were left for two shards (measured {ratio:.2f}x);"
            f" by CPU time per token two free cores would yield {cpu}"
        )
    if burst[2].server_cores > 1 - CORE_TOLERANCE:
        return (
            f"two shards >= {TARGET_RATIO}x: not resolvable here: the server was the limit"
            f" ({ratio:.2f}x); by CPU time per token {cpu}"
        )
    verdict = "kept" if ratio >= TARGET_RATIO else "MISSED"
    return f"two shards >= {TARGET_RATIO}x: {verdict}: {ratio:.2f}x; by CPU time per token {cpu}"


def table(found: Mapping[str, Mapping[int, ScalingRun]]) -> str:
    """Return the figures as text."""
    lines = [
        f"{'':16}{'tok/s':>12}{'us/token':>12}{'shards':>9}{'server':>9}{'others':>9}{'steal':>9}"
        "   (cores)"
    ]
    for name, of in found.items():
        for shards, took in of.items():
            cores = (took.shards_cores, took.server_cores, took.others_cores, took.steal_cores)
            label = f"{name}, {shards} shard{'s' if shards > 1 else ' '}".ljust(16)
            rates = f"{took.tok_s:12.0f}{took.us_per_token:12.2f}"
            lines.append(label + rates + "".join(f"{value:9.2f}" for value in cores))
    return "\n".join(lines)


def as_json(found: Mapping[str, Mapping[int, ScalingRun]], cores: int) -> dict[str, Any]:
    """Return the figures as a JSON object."""
    shown = {
        name: {str(shards): asdict(took) for shards, took in of.items()}
        for name, of in found.items()
    }
    burst = found["burst"]
    return {
        "cores": cores,
        "scenes": shown,
        "measured": burst[2].tok_s / burst[1].tok_s,
        "free_cores": burst[2].free_cores(cores),
        "by_cpu": {name: ratio_by_cpu(of) for name, of in found.items()},
    }


def main() -> int:
    """Measure and report; return 0 whatever the figures, 2 if a requirement is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None, help="write the figures there too")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        try:
            found = asyncio.run(measure(Path(folder), options.repeats))
        except MissingRequirement as error:
            print(f"benchmarks.load.scaling: {error}", file=sys.stderr)
            return 2
    report = json.dumps(as_json(found, cores))
    print(table(found), report, summary(found, cores), sep="\n")
    if options.json:
        options.json.write_text(report + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
