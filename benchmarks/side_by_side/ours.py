"""Runs our load process as the counterpart of bench_serving, and computes its figures by both
definitions.
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
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply
from fleet_protos.attachment import Trace, file_ref, pack
from fleet_protos.trial_types import AttachedFile, Workload

SEED: Final = 1
TIMEOUT_S: Final = 120.0
_OURS: Final = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "icl_s", "e2e": "e2e_s"}


def make_workload(load: Load, server: Server) -> tuple[Workload, Mapping[str, str]]:
    """Return the load as a job would request it, and the file that it refers to.

    The file of an open loop holds the arrival times of bench_serving.
    """
    common = Workload(
        load.name,
        requests=load.requests,
        prompts="random:ids",
        api="generate",
        vocabulary=server.vocabulary,
        request_timeout_s=TIMEOUT_S,
    )
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
    return replace(common, trace=file_ref(file)), {file_ref(file): file.content}


class LoadClient:
    """The load process of an agent, with its Ray."""

    def __init__(self, process: LoadProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder

    async def run(
        self, server: Server, load: Load, number: int, after_s: float
    ) -> tuple[Figures, Figures]:
        """Run once after a warm-up; return (figures by our definitions, by theirs).

        Raises LoadError, and ValueError if a request failed.
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
                f"{reply.requests_failed} of our requests failed: {dict(reply.error_examples)}"
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
    """Return the figures that the product reports for the run."""
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
    """Start our client on the core for clients; it is ready inside the block."""
    async with load_process(folder, client_core()) as process:
        yield LoadClient(process, folder)
