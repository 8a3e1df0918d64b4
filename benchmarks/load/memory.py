"""Measures how much memory a shard needs for a long run: the limit is 1.5 GB for 1,000,000 requests
of 200 chunks.

    python -m benchmarks.load.memory [--requests 1000000] [--json FILE]     table, JSON object

It runs growing numbers of requests up to the given one, with one shard, each in a load process of
its own, so that the process's peak is the run's. Memory first fills what a shard may keep (requests
prepared ahead, answers to decode, chunks before the first go to disk: `ShardLimits` in
`fleet_agent/load/workers/shard_plan.py`) and then grows slowly with the requests. The runs are
larger than that, so that a line through them gives the memory of a million requests where fewer
were run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.load import programs
from benchmarks.load.loaded import load_client
from benchmarks.load.programs import CLIENT_CORE, MissingRequirement, Pace
from fleet_agent.load.workers.shard_plan import ShardLimits
from fleet_protos.trial_types import Workload

REQUESTS: Final = 1_000_000
CHUNKS: Final = 200
STREAMS: Final = 64
LIMIT_MB: Final = 1500.0
RUN_SHARES: Final = (0.7, 1.0)  # of the requests asked for
DEFAULT_REQUESTS: Final = (
    100_000  # requests of the largest run unless others are asked for: the rest is on the line
)
MIN_REQUESTS: Final = ShardLimits().prepared  # requests of a run that can be on the line


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """One run; `shard_mb` is the peak resident memory of its shard."""

    requests: int
    shard_mb: float
    run_s: float
    decode_s: float


async def run(folder: Path, program: Path, requests: int) -> MemoryRun:
    """Run so many requests in a new load process."""
    cores = sorted(os.sched_getaffinity(0))
    workload = Workload(
        "memory",
        concurrency=STREAMS,
        requests=requests,
        output_tokens=CHUNKS,
        prompts="builtin:chat",
        api="chat",
        request_timeout_s=600,
    )
    async with load_client(
        folder / str(requests), frozenset({cores[CLIENT_CORE % len(cores)]})
    ) as client:
        with programs.truth_server(program, folder, Pace(0, 0)) as server:
            reply, _, _ = await client.run(server.url, workload)
        if reply.output_tokens != requests * CHUNKS:
            raise RuntimeError(f"{reply.output_tokens} tokens came of {requests * CHUNKS}")
        return MemoryRun(
            requests,
            client.shard_peaks_mb()[0],
            reply.duration_s,
            float(reply.facts["client_decode_s"]),
        )


def at_requests(took: Sequence[MemoryRun], requests: int) -> float:
    """Return the MB that so many requests need: as measured, or on the line through the runs.

    NaN if a run is too small for the line.
    """
    exact = [one.shard_mb for one in took if one.requests == requests]
    if exact:
        return exact[0]
    if min(one.requests for one in took) < MIN_REQUESTS:
        return math.nan
    slope, base = np.polyfit([one.requests for one in took], [one.shard_mb for one in took], 1)
    return float(base + slope * requests)


async def measure(folder: Path, requests: int) -> list[MemoryRun]:
    """Measure the runs, smallest first. Raises MissingRequirement without a C compiler."""
    program = programs.build(folder, "truth")
    return [await run(folder, program, round(share * requests)) for share in RUN_SHARES]


def summary(million_mb: float, *, measured: bool) -> str:
    """Return the sentence about a million requests."""
    if math.isnan(million_mb):
        return (
            f"{REQUESTS:9d} requests: unknown, because a run had fewer than the {MIN_REQUESTS}"
            " requests that a shard prepares ahead"
        )
    how = "measured" if measured else "on the line through the runs"
    verdict = "kept" if million_mb < LIMIT_MB else "MISSED"
    return f"{REQUESTS:9d} requests: {million_mb:.0f} MB ({how}) < {LIMIT_MB:.0f} {verdict}"


def main() -> int:
    """Measure and report.

    Return 0 if a million requests fit or the runs are too small to decide, 1 if they do not fit, 2
    if a requirement is missing.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=DEFAULT_REQUESTS,
        help="of the largest run; 1000000 takes about an hour",
    )
    parser.add_argument("--json", type=Path, default=None, help="write the figures there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        try:
            took = asyncio.run(measure(Path(folder), options.requests))
        except MissingRequirement as error:
            print(f"benchmarks.load.memory: {error}", file=sys.stderr)
            return 2
    million_mb = at_requests(took, REQUESTS)
    measured = any(one.requests == REQUESTS for one in took)
    for one in took:
        print(
            f"{one.requests:9d} requests of {CHUNKS} chunks: {one.shard_mb:7.0f} MB,"
            f" {one.run_s:7.1f} s, decoded in {one.decode_s:.1f} s"
        )
    print(summary(million_mb, measured=measured))
    known_mb = None if math.isnan(million_mb) else million_mb
    report = json.dumps(
        {"runs": [asdict(one) for one in took], "million_mb": known_mb, "measured": measured}
    )
    print(report)
    if options.json:
        options.json.write_text(report + "\n")
    return int(million_mb >= LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
