"""Owns how the load process is run beside bench_serving and how its raw file becomes figures by
both definitions. Judges nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from benchmarks.load.programs import client_core, load_process
from benchmarks.side_by_side.figures import RATE, Figures, Times, figures
from benchmarks.side_by_side.servers import Load, Server
from benchmarks.side_by_side.theirs import arrivals_s
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.load.messages import LoadReply, LoadRequest
from fleet_protos.attachment import Trace, pack
from fleet_protos.trial_types import AttachedFile, Workload

SEED: Final = 1
TIMEOUT_S: Final = 120.0
_OURS: Final = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "icl_s", "e2e": "e2e_s"}


def make_workload(load: Load, server: Server) -> tuple[Workload, Mapping[str, str]]:
    """The load as a job would ask for it, and the file that it names: of an open loop the arrivals
    of bench_serving.
    """
    common = Workload(load.name, requests=load.requests, prompts="random:ids", api="generate", vocabulary=server.vocabulary,
                      request_timeout_s=TIMEOUT_S)  # fmt: skip
    if load.concurrency:
        return replace(
            common,
            concurrency=load.concurrency,
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
        ), {}
    at_ms = tuple(round(1e3 * offset_s) for offset_s in arrivals_s(load, server.vocabulary))
    trace = Trace(
        at_ms, (load.input_tokens,) * load.requests, (load.output_tokens,) * load.requests
    )
    file = AttachedFile("trace:arrivals.csv", "0" * 64, pack(trace))
    return replace(common, trace=file.ref), {file.ref: file.content}


class LoadClient:
    """The load process of an agent, with its Ray."""

    def __init__(self, process: LoadProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder

    async def run(
        self, server: Server, load: Load, number: int, after_s: float
    ) -> tuple[Figures, Figures]:
        """One run after a warm-up: (figures by our definitions, by theirs). Raises LoadFailed, and
        ValueError when a request failed.
        """
        path = self._folder / f"{load.name}-{number}.parquet"
        workload, files = make_workload(load, server)
        run = LoadRequest(
            server.url, workload, SEED, number, model=server.model, parquet=str(path), files=files
        )
        await self._process.warm(replace(run, requests=load.warm_up, parquet=""))
        reply = await self._process.run(run)
        if reply.requests_failed:
            raise ValueError(
                f"{reply.requests_failed} requests of ours failed: {dict(reply.error_examples)}"
            )
        by_theirs = figures(
            [_request_times(row) for row in pq.read_table(path).to_pylist()], after_s
        )
        return _by_ours(reply, by_theirs), by_theirs


def _request_times(row: Mapping[str, Any]) -> Times:
    chunks = tuple(zip(row["chunk_ns"], row["chunk_tokens"], strict=True))
    return Times(
        row["sent_ns"], chunks, row["last_ns"], row["prompt_tokens"], row["completion_tokens"]
    )


def _by_ours(reply: LoadReply, counted: Figures) -> Figures:
    """What the product reports of the run; it has no means of latencies."""
    found = {
        RATE: reply.metrics[RATE],
        "requests": float(reply.requests_ok),
        "output_tokens": float(reply.output_tokens),
    }
    for name, metric in _OURS.items():
        for share in ("mean", "p50", "p99"):
            if f"{metric}_{share}" in reply.metrics:
                found[f"{name}_ms_{share}"] = 1e3 * reply.metrics[f"{metric}_{share}"]
    return {**found, "input_tokens": counted["input_tokens"]}


@asynccontextmanager
async def client(folder: Path) -> AsyncIterator[LoadClient]:
    """Ours, ready, on the core of clients."""
    async with load_process(folder, client_core()) as process:
        yield LoadClient(process, folder)
