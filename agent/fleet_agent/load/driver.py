"""Implements the load process: starts Ray once and performs the orders that it reads on stdin.

Orders and answers are JSON lines (messages.py). The first answer is {"ready": true, …}. Then each
warm-up or run is answered with {"id", "ok"} or {"id", "error"}. The end of stdin ends Ray and this
process. Exit codes: 0 stdin has ended, 1 Ray did not start, 3 Ray ended unexpectedly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fleet_agent.load import messages
from fleet_agent.load.client.native.library import load_library
from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.client.server_cache import flush_prefix_cache, probe_template_tokens
from fleet_agent.load.cluster.cluster_workers import ClusterWorkers
from fleet_agent.load.cluster.membership import MembershipFiles
from fleet_agent.load.cluster.ray_node import RayNode
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results import server_counters
from fleet_agent.load.results.load_reply import LoadReply, ParquetFile
from fleet_agent.load.results.request_columns import Columns
from fleet_agent.load.shard_planning import plan_shards
from fleet_agent.load.workers.calibration import Calibration, ClientWork, add_client_use
from fleet_agent.load.workers.local_workers import (
    LocalWorkers,
    ShardResults,
    ShardWorkers,
    remove_stale_cancels,
    task_error_cause,
)
from fleet_agent.load.workers.ray_session import RaySession, end_own_session, wait_for_end_of_ray
from fleet_agent.load.workers.shard_plan import ShardPlan
from fleet_agent.load.workload.request_plan import RequestPlan
from fleet_knowledge.sglang_metrics.accept_rate import DraftShape
from fleet_protos.errors import LoadError
from fleet_protos.workload_rules import is_open_loop

LINE_LIMIT: Final = 1 << 20
# followed by a number: the folder for chunks of a large run, until its file is written
_SPILL_PREFIX: Final = "chunks-"


@dataclass(slots=True)
class Driver:
    """Holds the state of the load process: Ray, its workers, the orders in progress, and what is
    known about servers.
    """

    ray: Any
    workers: ShardWorkers
    answers_fd: int  # where answers are written
    temporary: str  # Ray's folder
    folder: Path  # for its own files
    # tokens of the chat template, by the server's URL
    templates: dict[str, int | None] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)  # ids of orders without an answer
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the order being performed
    calibration: Calibration = field(default_factory=Calibration)  # of shards on this host

    def write_answer(self, line: bytes) -> None:
        """Write one line to the agent. The line is dropped if the agent is gone.

        The agent reads all the time, so that this does not block for long.
        """
        with suppress(BrokenPipeError):
            os.write(self.answers_fd, line)

    async def execute(self, number: int, operation: str, content: Mapping[str, Any]) -> None:
        """Perform one warm-up or run and answer the order. Orders are performed one at a time, in
        the order in which they arrive.
        """
        try:
            async with self.lock:
                reply = await self.measure(number, operation, messages.read_request(content))
            line = messages.reply_line(number, reply)
        except (TypeError, KeyError, ValueError) as error:
            line = messages.error_line(
                number, f"the requests of the load cannot be planned: {error}"
            )
        except LoadError as error:
            line = messages.error_line(number, error.message)
        except (OSError, self.ray.exceptions.RayError) as error:
            cause = f"{type(error).__name__}: {task_error_cause(error)}"
            line = messages.error_line(number, f"the load failed: {cause}")
        finally:
            self.pending.discard(number)
        self.write_answer(line)

    async def measure(self, number: int, operation: str, request: LoadRequest) -> LoadReply:
        """Empty the server's cache if requested, run the shards, and write the raw data. Raises
        LoadError, ValueError, OSError or RayError.
        """
        warm = operation == messages.WARM
        workload = request.workload
        target = LoadTarget(request.url.rstrip("/"), request.model, request.sglang, request.token)
        if warm or target.url not in self.templates:
            self.templates[target.url] = await probe_template_tokens(
                target, workload.api or "chat", workload.request_timeout_s
            )
        flushed = not warm and request.sglang and request.flush and await flush_prefix_cache(target)
        plans = plan_shards(
            request,
            await self.workers.make_reachable(target),
            warm=warm,
            shard_count=self.workers.shard_count,
        )
        # created by the first shard whose chunks exceed its memory limit
        spill_folder = self.folder / f"{_SPILL_PREFIX}{number}"
        try:
            reply = await self._run(
                number,
                target.url,
                request,
                [replace(plan, spill_folder=str(spill_folder)) for plan in plans],
                warm=warm,
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, spill_folder, ignore_errors=True)
        return replace(reply, cache_flushed=flushed)

    async def _run(
        self,
        number: int,
        url: str,
        request: LoadRequest,
        plans: list[ShardPlan],
        *,
        warm: bool,
    ) -> LoadReply:
        capacity = (
            await self.calibration.measure_once()
            if isinstance(self.workers, LocalWorkers) and not warm
            else None
        )
        before = await server_counters.fetch_metrics(url, request.token) if request.sglang else ""
        done = await self.workers.run(number, plans)
        _refuse_unfinished(done, plans[0].limit_s)
        columns = Columns.concatenate([result.columns for result in done.results])
        reply = await asyncio.to_thread(
            _summarise_run, columns, request, done, self.templates[url], plans[0].request_plan
        )
        # after a warm-up too, so that what it left to count does not count for the first run
        after = await server_counters.fetch_metrics_after(
            url, before, reply.output_tokens, request.token
        )
        reply = _with_counters(
            reply, server_counters.CounterSnapshots(before, after), request, warm=warm
        )
        if not warm:
            work = ClientWork.from_results(
                done.results, is_open=is_open_loop(request.workload), time_scale=request.time_scale
            )
            reply = add_client_use(reply, capacity, work)
        reply = replace(
            reply,
            started_unix_ns=min(result.started_unix_ns for result in done.results),
            facts={**reply.facts, "start_skew_s": done.start_skew_s},
        )
        if warm or not request.parquet:
            return reply
        notes = {
            "client_reads_in": ",".join(sorted({result.reads_in for result in done.results}))
        } | dict(done.notes)
        return replace(
            reply, parquet=await asyncio.to_thread(_write_parquet, request, columns, notes)
        )


def _with_counters(
    reply: LoadReply,
    snapshots: server_counters.CounterSnapshots,
    request: LoadRequest,
    *,
    warm: bool,
) -> LoadReply:
    reply = server_counters.add_counted(reply, snapshots)
    if warm or not (request.speculation and request.sglang):
        return reply
    shape = DraftShape(request.draft_steps or None, request.draft_tokens or None)
    return server_counters.add_speculation(reply, snapshots, shape, request.time_scale)


def _refuse_unfinished(done: ShardResults, limit_s: float) -> None:
    """Raise LoadError if a shard ended before its last request."""
    if any(result.expired for result in done.results):
        raise LoadError(
            f"the run was ended after {limit_s:.0f} s, the longest time that its requests may take"
        )
    if any(result.cancelled for result in done.results):
        raise LoadError("cancelled")


def _summarise_run(
    columns: Columns,
    request: LoadRequest,
    done: ShardResults,
    template_tokens: int | None,
    request_plan: RequestPlan | None,
) -> LoadReply:
    """Return the summary of a run. Raises OSError."""
    # imported here, so that pyarrow loads while Ray starts, not before
    from fleet_agent.load.results.run_summary import (
        RunConditions,
        summarise,
    )

    conditions = RunConditions(
        request.workload,
        request.time_scale,
        template_tokens,
        speculation=request.speculation,
        lags_ns=(*(lag for result in done.results for lag in result.lags_ns), *done.lags_ns),
        planned_cached_ratio=(
            request_plan.planned_cached_share(columns.rows) if request_plan else None
        ),
        cpu_s=sum(result.cpu_s for result in done.results),
        decode_s=sum(result.decode_s for result in done.results),
    )
    return summarise(columns, conditions)


def _write_parquet(request: LoadRequest, columns: Columns, notes: Mapping[str, str]) -> ParquetFile:
    """Write the raw data of a run to its file. Raises OSError."""
    from fleet_agent.load.results import parquet_writer  # see _summarise_run

    known = {
        "workload": request.workload.name,
        "run": request.run_index,
        "seed": request.seed,
        "time_scale": request.time_scale,
    }
    return parquet_writer.write_parquet(
        Path(request.parquet), columns, known | dict(request.metadata) | dict(notes)
    )


async def serve(driver: Driver, orders: asyncio.StreamReader) -> int:
    """Perform orders until stdin ends, then return exit code 0. If Ray ends earlier, the process
    exits with 3.
    """
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(wait_for_end_of_ray())
        reading = group.create_task(_read_orders(driver, orders, group))
        await asyncio.wait((watch, reading), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            watch.cancel()
            return 0
        ended = watch.result()
        for number in sorted(driver.pending):
            message = f"the load failed: Ray's process {ended} has ended"
            driver.write_answer(messages.error_line(number, message, fatal=True))
        shutil.rmtree(driver.temporary, ignore_errors=True)
        # without its raylet Ray cannot shut down cleanly; its processes die with this one
        os._exit(3)


async def _read_orders(
    driver: Driver, orders: asyncio.StreamReader, group: asyncio.TaskGroup
) -> None:
    while line := await orders.readline():
        content = json.loads(line)
        number, operation = int(content["id"]), content["op"]
        if operation == messages.CANCEL:
            if number in driver.pending:
                driver.workers.cancel(number)
        else:
            driver.pending.add(number)
            group.create_task(driver.execute(number, operation, content))
    for number in driver.pending:
        driver.workers.cancel(number)


def _preload_arrow() -> None:
    from fleet_agent.load.results import parquet_writer, run_summary

    run_summary.preload_arrow()
    parquet_writer.preload_parquet()


def _make_workers(
    session: RaySession | RayNode, ray: Any, options: argparse.Namespace
) -> ShardWorkers:
    if isinstance(session, RayNode):
        return ClusterWorkers(ray, session.membership, MembershipFiles(options.cluster))
    return LocalWorkers(ray, options.folder)


async def _main(
    session: RaySession | RayNode, options: argparse.Namespace, orders_fd: int, answers_fd: int
) -> int:
    ray = session.start()
    workers = _make_workers(session, ray, options)
    # pyarrow is imported here while the workers import what they need
    await asyncio.gather(workers.prepare_workers(), asyncio.to_thread(_preload_arrow))
    driver = Driver(ray, workers, answers_fd, session.temporary, options.folder)
    orders = asyncio.StreamReader(limit=LINE_LIMIT)
    with os.fdopen(orders_fd, "rb") as pipe:
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(orders), pipe
        )
        driver.write_answer(messages.ready_line(session.started_s))
        return await serve(driver, orders)


def main() -> None:
    """Run `python -m fleet_agent.load.driver --folder DIR [--temporary DIR] [--cluster DIR]`."""
    parser = argparse.ArgumentParser(description="Sends load for fleet-agent, as ordered on stdin.")
    parser.add_argument(
        "--folder",
        required=True,
        type=Path,
        help="folder for the files of this process while it runs",
    )
    parser.add_argument(
        "--temporary",
        default="",
        help="an empty folder with a short path, removed at the end",
    )
    parser.add_argument(
        "--cluster",
        type=Path,
        help="folder with this host's membership as the lead of a cluster"
        " (default: Ray runs on this host only)",
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for left in arguments.folder.glob(
        f"{_SPILL_PREFIX}*"
    ):  # left by a load process that was killed
        shutil.rmtree(left, ignore_errors=True)
    remove_stale_cancels(arguments.folder)
    # what Ray and its children print must not reach the agent: they get other descriptors
    orders, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    load_library()  # built before the workers need it; the first time takes 0.2 s
    session = _make_session(arguments)
    try:
        code = asyncio.run(_main(session, arguments, orders, answers))
    except LoadError as error:
        os.write(answers, messages.error_line(0, error.message, fatal=True))
        code = 1
    except (RuntimeError, OSError) as error:
        os.write(answers, messages.error_line(0, f"Ray did not start: {error}", fatal=True))
        code = 1
    finally:
        session.stop()
        end_own_session()
    sys.exit(code)


def _make_session(options: argparse.Namespace) -> RaySession | RayNode:
    if options.cluster is None:
        return RaySession(options.temporary)
    files = MembershipFiles(options.cluster)
    return RayNode(files.read(), files, options.temporary)


if __name__ == "__main__":
    main()
