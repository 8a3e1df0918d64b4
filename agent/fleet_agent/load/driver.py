"""Owns the load process: keeps one local Ray and drives load as its tasks, on orders read from stdin. Knows no trial and no gate.

Protocol (messages.py): JSON lines. The first answer is {"ready": true, …}; then one {"id", "ok"} or {"id", "error"} for each warm
or run; end of stdin ends Ray and this process. Exit codes: 0 after end of stdin, 1 Ray did not start, 3 Ray broke.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fleet_agent.load import counters, messages, shard
from fleet_agent.load.arrivals import send_offsets_s
from fleet_agent.load.body import Target
from fleet_agent.load.cache import flush, template_tokens
from fleet_agent.load.messages import LoadReply, LoadRequest, ParquetFile
from fleet_agent.load.prompts import WARM_UP, Draw
from fleet_agent.load.ray_session import CORES, RaySession, wait_for_end_of_ray
from fleet_agent.load.records import Request
from fleet_agent.load.summary import Conditions, Summary, summarise
from fleet_knowledge.figures.accept import Shape
from fleet_protos.errors import LoadFailed

SHARE_FROM: Final = 16  # concurrent requests from which two workers share the load; below, one loop is mostly idle
WARM_LEAST: Final = 3
WARM_MOST_USERS: Final = 8
LINE_LIMIT: Final = 1 << 20


@dataclass(slots=True)
class Driver:
    """The load process's state: Ray, where answers go, what is in flight, and what is known of servers."""

    ray: Any
    answers: int  # file descriptor
    folder: Path
    temporary: str  # Ray's folder
    templates: dict[str, int | None] = field(default_factory=dict)  # tokens of the chat template, by server
    pending: set[int] = field(default_factory=set)  # ids of what was asked for and not answered
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time, in the order of asking

    def answer(self, line: bytes) -> None:
        """Write one line to the agent; it reads all the time, so this does not block for long."""
        os.write(self.answers, line)

    def cancel_path(self, number: int) -> Path:
        """The file whose existence ends that run's shards."""
        return self.folder / f"cancel-{number}"

    async def carry_out(self, number: int, operation: str, content: Mapping[str, Any]) -> None:
        """One warm-up or run, to its answer; it waits for those asked for before it."""
        try:
            async with self.turn:
                reply = await self.measure(number, operation, messages.read_request(content))
            line = messages.reply_line(number, reply)
        except (TypeError, KeyError, ValueError) as error:
            line = messages.error_line(number, f"the load cannot be built: {error}")
        except LoadFailed as error:
            line = messages.error_line(number, error.message)
        except (OSError, self.ray.exceptions.RayError) as error:
            line = messages.error_line(number, f"the load broke: {type(error).__name__}: {_cause(error)}")
        finally:
            self.cancel_path(number).unlink(missing_ok=True)
            self.pending.discard(number)
        self.answer(line)

    async def measure(self, number: int, operation: str, request: LoadRequest) -> LoadReply:
        """Prepare the server's cache, run the shards, write the raw data. Raises LoadFailed, ValueError, OSError, RayError."""
        warm = operation == messages.WARM
        workload = request.workload
        target = Target(request.url.rstrip("/"), request.model, request.sglang, request.token)
        if warm or target.url not in self.templates:
            self.templates[target.url] = await template_tokens(target, workload.api or "chat", workload.request_timeout_s)
        flushed = not warm and request.sglang and request.flush and await flush(target)
        plans = plan_shards(request, target, warm=warm, cancel_path=str(self.cancel_path(number)))
        watched = request.speculation and request.sglang and not warm
        before = await counters.look(target.url) if watched else ""
        results = await self.run_shards(number, plans)
        if any(result.cancelled for result in results):
            raise LoadFailed("cancelled")
        requests = sorted((item for result in results for item in result.requests), key=lambda item: item.number)
        lags = tuple(lag for result in results for lag in result.lags_ns)
        conditions = Conditions(workload, request.time_scale, self.templates[target.url], lags, request.speculation)
        summary = summarise(requests, conditions)
        if watched:
            looks = counters.Looks(before, await counters.look_after(target.url, before, summary.output_tokens))
            shape = Shape(request.draft_steps or None, request.draft_tokens or None)
            summary = counters.with_speculation(summary, looks, shape, request.time_scale)
        reply = replace(_reply(summary), cache_flushed=flushed, started_unix_ns=min(result.started_unix_ns for result in results))
        if warm or not request.parquet:
            return reply
        return replace(reply, parquet=await asyncio.to_thread(_write_raw, request, requests))

    async def run_shards(self, number: int, plans: list[shard.ShardPlan]) -> list[shard.ShardResult]:
        """Run each share in its own Ray task; when one dies the others are ended. Raises LoadFailed."""
        task = self.ray.remote(max_retries=0, num_cpus=1)(shard.run_shard)
        shares = [self.share(number, task.remote(plan)) for plan in plans]
        results = await asyncio.gather(*shares, return_exceptions=True)
        for result in results:
            if isinstance(result, self.ray.exceptions.RayTaskError):
                raise LoadFailed(f"the load cannot be sent: {_cause(result)}")
            if isinstance(result, self.ray.exceptions.RayError):
                raise LoadFailed(f"load task died: {type(result).__name__}")
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, shard.ShardResult)]

    async def share(self, number: int, reference: Any) -> shard.ShardResult:
        """One shard's result; when it has none the run's other shards are ended. Raises RayError."""
        try:
            result: shard.ShardResult = await reference
        except self.ray.exceptions.RayError:
            self.cancel_path(number).touch()
            raise
        return result


def _cause(error: Any) -> str:
    """What was raised inside the task, in one line."""
    cause = getattr(error, "cause", None) or error
    return next((line for line in reversed(str(cause).splitlines()) if line.strip()), type(cause).__name__)


def plan_shards(request: LoadRequest, target: Target, *, warm: bool, cancel_path: str) -> list[shard.ShardPlan]:
    """Split the load over one or two workers. Model time becomes wall time for the arrivals; the timeout of a request is wall time.

    Raises ValueError for a workload that is neither a closed nor an open loop.
    """
    workload = request.workload
    whole = shard.ShardPlan(
        target=target, api=workload.api or "chat",
        draw=Draw(workload.prompts, request.seed, WARM_UP if warm else request.run_index, request.salt_scope),
        output_tokens=workload.output_tokens, requests=0, timeout_s=workload.request_timeout_s, cancel_path=cancel_path,
    )  # fmt: skip
    if warm:
        users = workload.concurrency or WARM_MOST_USERS
        whole = replace(whole, requests=request.requests or max(WARM_LEAST, users))
        return _split(whole, min(users, whole.requests))
    if workload.concurrency > 0:
        whole = replace(whole, requests=workload.requests or max(WARM_LEAST, 2 * workload.concurrency))
        return _split(whole, min(workload.concurrency, whole.requests))
    offsets = send_offsets_s(workload, request.seed, request.run_index)
    whole = replace(whole, requests=len(offsets), offsets_s=tuple(offset / request.time_scale for offset in offsets))
    return _split(whole, 0)


def _split(whole: shard.ShardPlan, users: int) -> list[shard.ShardPlan]:
    """Shares of equal size: request n goes to share n modulo their number, each user to one share."""
    shares = CORES if users >= SHARE_FROM and (os.cpu_count() or 1) >= CORES else 1
    return [
        replace(whole, first=index, step=shares, concurrency=(users + shares - 1 - index) // shares) for index in range(shares)
    ]  # fmt: skip


def _write_raw(request: LoadRequest, requests: list[Request]) -> ParquetFile:
    """Write the run's raw file. Raises OSError."""
    from fleet_agent.load import recorder  # here, so that pyarrow loads beside Ray's start instead of before it

    known = {"workload": request.workload.name, "run": request.run_index, "seed": request.seed, "time_scale": request.time_scale}
    written = recorder.write(Path(request.parquet), requests, known | dict(request.metadata))
    return ParquetFile(written.path, written.sha256, written.size_bytes)


def _reply(summary: Summary) -> LoadReply:
    return LoadReply(
        metrics=summary.metrics, facts=summary.facts, error_examples=summary.error_examples, requests_ok=summary.requests_ok,
        requests_failed=summary.requests_failed, output_tokens=summary.output_tokens, duration_s=summary.duration_s,
    )  # fmt: skip


async def serve(driver: Driver, orders: asyncio.StreamReader) -> int:
    """Carry out orders until their stream ends or Ray does; returns the exit code."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(wait_for_end_of_ray())
        reading = group.create_task(_read_orders(driver, orders, group))
        await asyncio.wait((watch, reading), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            watch.cancel()
            return 0
        for number in sorted(driver.pending):
            driver.answer(messages.error_line(number, f"load task died: Ray's {watch.result()} ended", fatal=True))
        shutil.rmtree(driver.temporary, ignore_errors=True)
        os._exit(3)  # Ray without its raylet cannot be shut down in order; its parts die with this process


async def _read_orders(driver: Driver, orders: asyncio.StreamReader, group: asyncio.TaskGroup) -> None:
    while line := await orders.readline():
        content = json.loads(line)
        number, operation = int(content["id"]), content["op"]
        if operation == messages.CANCEL:
            if number in driver.pending:
                driver.cancel_path(number).touch()
        else:
            driver.pending.add(number)
            group.create_task(driver.carry_out(number, operation, content))
    for number in driver.pending:
        driver.cancel_path(number).touch()


async def _warm_workers(ray: Any) -> None:
    """Have every worker import what a shard needs, and pyarrow here in the meantime."""
    task = ray.remote(max_retries=0, num_cpus=1)(shard.get_ready)
    imported = asyncio.to_thread(_import_recorder)
    await asyncio.gather(*(_finished(task.remote()) for _ in range(CORES)), imported)


def _import_recorder() -> None:
    from fleet_agent.load import recorder

    recorder.get_ready()


async def _finished(reference: Any) -> None:
    await reference


async def _main(session: RaySession, folder: Path, orders_fd: int, answers_fd: int) -> int:
    ray = session.start()
    await _warm_workers(ray)
    driver = Driver(ray, answers_fd, folder, session.temporary)
    orders = asyncio.StreamReader(limit=LINE_LIMIT)
    with os.fdopen(orders_fd, "rb") as pipe:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), pipe)
        driver.answer(messages.ready_line(session.started_s))
        return await serve(driver, orders)


def main() -> None:
    """`python -m fleet_agent.load.driver --folder DIR`."""
    parser = argparse.ArgumentParser(description="The load process of fleet-agent; takes its orders on stdin.")
    parser.add_argument("--folder", required=True, type=Path, help="where it may keep files while it runs")
    parser.add_argument("--temporary", default="", help="an empty folder with a short path, which it removes at its end")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    orders, answers = os.dup(0), os.dup(1)  # what Ray and its children print must not reach the agent: they get other descriptors
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    session = RaySession(arguments.temporary)
    try:
        code = asyncio.run(_main(session, folder, orders, answers))
    except (RuntimeError, OSError) as error:
        os.write(answers, messages.error_line(0, f"Ray did not start: {error}", fatal=True))
        code = 1
    finally:
        session.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
