"""What two shards drive beside one, where their cores are free; and where they are not, what the
CPU time of a token says of it.

    python -m benchmarks.load.scaling [--repeats 3] [--json FILE]     one table, one JSON object,
    one sentence

Two shards get twice the streams of one, in turns (one, two, two, one). `paced` is a load that one
shard and the server carry with ease, `burst` all that they can. A machine resolves the ratio of
throughputs only with two cores beside those that the server and everybody else use. CPU time does
not need free cores: shards that share no hot path take as much of it for a token as one does, so
two free cores drive 2 × (that of one) ÷ (that of two) times as much.
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
CORE_TOLERANCE: Final = 0.1  # of a core, that may be missing from two free ones
SHARDS: Final = (1, 2)
TOKENS: Final = 200


@dataclass(frozen=True, slots=True)
class Scene:
    """How the server answers, and what one shard has to do; two have twice of it."""

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
    """One run. Cores are means over it: of the shards, of the server, of everybody else, and what
    the hypervisor gave to others.
    """

    tok_s: float
    us_per_token: float
    shards_cores: float
    server_cores: float
    others_cores: float
    steal_cores: float

    def free_cores(self, cores: int) -> float:
        """How many cores nobody else used: the shards' own and idle ones."""
        return cores - self.server_cores - self.others_cores - self.steal_cores


async def run(
    client: LoadClient, program: Path, folder: Path, name: str, shards: int
) -> ScalingRun:
    """One run of a scene by so many shards, with who used the machine meanwhile."""
    scene = SCENES[name]
    workload = Workload(
        name, concurrency=scene.streams * shards, requests=scene.requests * shards, output_tokens=scene.tokens, prompts="builtin:chat",
        api="chat", request_timeout_s=300,
    )  # fmt: skip
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
    """Medians, by scene and shards. Raises Missing without a C compiler or a second core."""
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
    """How many times the throughput of one shard two would reach, each with a core of its own and a
    server that keeps up.
    """
    return 2 * found[1].us_per_token / found[2].us_per_token


def summary(found: Mapping[str, Mapping[int, ScalingRun]], cores: int) -> str:
    """What the figures say of two shards; plainly that they do not, where cores are missing."""
    burst = found["burst"]
    free, ratio = burst[2].free_cores(cores), burst[2].tok_s / burst[1].tok_s
    cpu = ", ".join(f"{ratio_by_cpu(of):.2f}x by {name}" for name, of in found.items())
    if free < 2 - CORE_TOLERANCE:
        used = f"the server used {burst[2].server_cores:.2f}, others {burst[2].others_cores:.2f}, the hypervisor {burst[2].steal_cores:.2f}"
        return (
            f"two shards >= {TARGET_RATIO}x: not resolvable here: of {cores} cores {used}, so {free:.2f} were left for two shards "
            f"(measured {ratio:.2f}x); by CPU time of a token two free cores would give {cpu}"
        )
    if burst[2].server_cores > 1 - CORE_TOLERANCE:
        return f"two shards >= {TARGET_RATIO}x: not resolvable here: the server was the limit ({ratio:.2f}x); by CPU time of a token {cpu}"
    return f"two shards >= {TARGET_RATIO}x: {'kept' if ratio >= TARGET_RATIO else 'MISSED'}: {ratio:.2f}x; by CPU time of a token {cpu}"


def table(found: Mapping[str, Mapping[int, ScalingRun]]) -> str:
    """For people."""
    lines = [
        f"{'':16}{'tok/s':>12}{'us/token':>12}{'shards':>9}{'server':>9}{'others':>9}{'steal':>9}   (cores)"
    ]
    for name, of in found.items():
        for shards, took in of.items():
            cores = (took.shards_cores, took.server_cores, took.others_cores, took.steal_cores)
            lines.append(f"{name}, {shards} shard{'s' if shards > 1 else ' '}".ljust(16) + f"{took.tok_s:12.0f}{took.us_per_token:12.2f}"
                         + "".join(f"{value:9.2f}" for value in cores))  # fmt: skip
    return "\n".join(lines)


def as_json(found: Mapping[str, Mapping[int, ScalingRun]], cores: int) -> dict[str, Any]:
    """For programs."""
    shown = {
        name: {str(shards): asdict(took) for shards, took in of.items()}
        for name, of in found.items()
    }
    burst = found["burst"]
    return {"cores": cores, "scenes": shown, "measured": burst[2].tok_s / burst[1].tok_s, "free_cores": burst[2].free_cores(cores),
            "by_cpu": {name: ratio_by_cpu(of) for name, of in found.items()}}  # fmt: skip


def main() -> int:
    """0 when measured, whatever the figures; 2 when something is missing."""
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
