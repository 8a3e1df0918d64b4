"""Measures 10,000 streams at a time from one host: whether all are open at once and none is lost,
miscounted or late.

    python -m benchmarks.load.streams [--streams 10000] [--json FILE]     one table, one JSON object

All streams are open at one moment, because a request lasts far longer than starting all of them
takes. The truth server has a core of its own; the shards have the others, or share its core if
there is no other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq

from benchmarks.load import errors, programs
from benchmarks.load.loaded import find_child, load_client, read_requests, watch_cpu
from benchmarks.load.programs import SERVER_CORE, MissingRequirement, Pace
from fleet_protos.trial_types import Workload

STREAMS: Final = 10_000
PACE: Final = Pace(3_000_000, 1_000_000)
TOKENS: Final = 8
SPARE_FILES: Final = 128


@dataclass(frozen=True, slots=True)
class StreamResults:
    """The figures of a run, in milliseconds, cores and megabytes.

    TTFT counts from the moment of sending: the first requests of all slots are due within 50 ms,
    and `dispatch_delay_ms_p99` shows how late they were sent.
    """

    streams: int
    open_at_once: int
    failed: int
    miscounted: int
    ttft_error_ms_p50: float
    ttft_error_ms_p99: float
    tpot_error_ms_p99: float
    dispatch_delay_ms_p99: float
    loop_lag_ms_p99: float
    shards_cores: float
    server_cores: float
    others_cores: float
    shard_peak_mb: float


def max_open(sent_ns: Sequence[int], last_ns: Sequence[int]) -> int:
    """Return the most requests in flight at one moment."""
    moments = np.concatenate([np.asarray(sent_ns), np.asarray(last_ns)])
    steps = np.concatenate([np.ones(len(sent_ns), int), -np.ones(len(last_ns), int)])
    return int(np.cumsum(steps[np.lexsort((steps, moments))]).max())


async def measure(folder: Path, streams: int) -> StreamResults:
    """Run once.

    Raises MissingRequirement without a C compiler or with too few descriptors, RuntimeError if a
    request failed.
    """
    file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if file_limit < streams + SPARE_FILES:
        raise MissingRequirement(
            f"{streams} streams need {streams + SPARE_FILES} open files, but `ulimit -Hn` is"
            f" {file_limit}: raise it, or lower --streams"
        )
    cores = sorted(os.sched_getaffinity(0))
    others = [core for core in cores if core != cores[SERVER_CORE % len(cores)]]
    program = programs.build(folder, "truth")
    workload = Workload(
        "streams",
        concurrency=streams,
        requests=streams,
        output_tokens=TOKENS,
        prompts="builtin:chat",
        api="chat",
        request_timeout_s=120,
    )
    async with load_client(folder, frozenset(others[:2] if len(others) > 1 else cores)) as client:
        with programs.truth_server(program, folder, PACE) as server:
            async with watch_cpu(find_child("truth")) as watch:
                reply, raw, run = await client.run(server.url, workload, raw=True)
        peaks = client.shard_peaks_mb()
    rows = pq.read_table(raw, columns=["sent_ns", "last_ns"]).to_pydict()
    found = errors.compare(read_requests(raw, workload, run), server.records)
    used, ours = (
        watch.mean_cores(reply.started_unix_ns, reply.duration_s),
        float(reply.facts["client_cpu_s"]) / reply.duration_s,
    )
    return StreamResults(
        streams=streams,
        open_at_once=max_open(rows["sent_ns"], rows["last_ns"]),
        failed=reply.requests_failed,
        miscounted=found.miscounted,
        ttft_error_ms_p50=found.ttft_ms["p50"],
        ttft_error_ms_p99=found.ttft_ms["p99"],
        tpot_error_ms_p99=found.tpot_ms["p99"],
        dispatch_delay_ms_p99=1e3 * reply.metrics["dispatch_delay_s_p99"],
        loop_lag_ms_p99=1e3 * float(reply.facts["loop_lag_p99_s"]),
        shards_cores=ours,
        server_cores=used.server_s,
        others_cores=max(0.0, used.busy_s - ours - used.server_s),
        shard_peak_mb=peaks[0],
    )


def main() -> int:
    """Measure and report.

    Return 0 if all were open at once and none miscounted, else 1; 2 if a requirement is missing.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--json", type=Path, default=None, help="write the figures there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        try:
            found = asyncio.run(measure(Path(folder), options.streams))
        except MissingRequirement as error:
            print(f"benchmarks.load.streams: {error}", file=sys.stderr)
            return 2
    report = json.dumps(asdict(found))
    print(
        "\n".join(f"{name:24}{value:12.4g}" for name, value in asdict(found).items()),
        report,
        sep="\n",
    )
    if options.json:
        options.json.write_text(report + "\n")
    return 0 if found.open_at_once == found.streams and not found.miscounted else 1


if __name__ == "__main__":
    sys.exit(main())
