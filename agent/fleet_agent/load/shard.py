"""Owns one share of a run's load, as a Ray task carries it out in its worker: own loop, own clock; decodes after the run."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Final

import uvloop

from fleet_agent.load.body import PATHS, Target, body, http_request
from fleet_agent.load.client import Connection, Endpoint, Exchange
from fleet_agent.load.decode import decode
from fleet_agent.load.prompts import Draw, draw_prompt
from fleet_agent.load.records import ErrorName, Request

PROBE_S: Final = 0.01  # the loop lag is sampled this often
TIMER_NS: Final = 1_000_000  # uvloop's timers have a resolution of one millisecond: that much is not lag
GIVE_UP_AFTER: Final = 2  # failures in a row after which a slot sends no more: the run is void anyway
MOST_IN_FLIGHT: Final = 1024  # of an open loop's shard; what is due beyond waits, and its delay is recorded
RAW_LIMIT_BYTES: Final = 1 << 30  # answers kept undecoded until the end; beyond, they are decoded at once and the loop lag tells


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard's share: the requests `first, first + step, …` below `requests`. Wall seconds; nothing here is model time."""

    target: Target
    api: str
    draw: Draw
    output_tokens: int
    requests: int
    first: int = 0
    step: int = 1
    concurrency: int = 0  # slots of this shard (closed loop)
    offsets_s: tuple[float, ...] = ()  # of all requests of the run (open loop)
    timeout_s: float = 600.0
    cancel_path: str = ""  # a file that appears here ends the shard

    @property
    def numbers(self) -> range:
        """The requests of this shard."""
        return range(self.first, self.requests, self.step)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard measured. `lags_ns` are the samples of its loop's lag beyond the timer's resolution."""

    requests: tuple[Request, ...]
    started_unix_ns: int
    lags_ns: tuple[int, ...]
    cancelled: bool


@dataclass(slots=True)
class _Raw:
    number: int
    intended_ns: int
    exchange: Exchange


@dataclass(slots=True)
class _Shard:
    """The state of a shard while it runs."""

    plan: ShardPlan
    endpoint: Endpoint
    sends: dict[int, tuple[bytes, str]]  # request bytes and prompt digest by number
    raw: list[_Raw] = field(default_factory=list)
    done: list[Request] = field(default_factory=list)
    raw_bytes: int = 0
    lags_ns: list[int] = field(default_factory=list)
    flying: set[Connection] = field(default_factory=set)
    cancelled: bool = False

    async def send(self, number: int, intended_ns: int) -> Exchange:
        """One request from its sending to the end of its answer, recorded whatever came."""
        mine: list[Connection] = []

        def took_off(connection: Connection) -> None:
            mine.append(connection)
            self.flying.add(connection)

        exchange = await self.endpoint.exchange(self.sends[number][0], self.plan.timeout_s, took_off)
        self.flying.difference_update(mine)
        self.raw_bytes += sum(len(data) for _, data in exchange.reads)
        raw = _Raw(number, intended_ns, exchange)
        if self.raw_bytes > RAW_LIMIT_BYTES:
            self.done.append(self.read(raw))
        else:
            self.raw.append(raw)
        return exchange

    def read(self, raw: _Raw) -> Request:
        """Decode one recorded exchange; the text itself is not kept."""
        exchange = raw.exchange
        response = decode(exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail)
        sent_ns = 0 if exchange.failure == ErrorName.CONNECT else exchange.sent_ns
        return Request(raw.number, raw.intended_ns, sent_ns, self.sends[raw.number][1], replace(response, text=""))

    def cancel(self) -> None:
        """End every request in flight and send no more."""
        self.cancelled = True
        for connection in tuple(self.flying):
            connection.cancel()


def run_shard(plan: ShardPlan) -> ShardResult:
    """Carry out the share; failed requests are in the result. Raises ValueError for a plan that cannot be sent."""
    _raise_file_limit()
    endpoint = Endpoint(plan.target.url)
    shard = _Shard(plan, endpoint, {number: _prepare(plan, number) for number in plan.numbers})
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            started = runner.run(_drive(shard))
    finally:
        gc.enable()
    requests = tuple(sorted([*shard.done, *map(shard.read, shard.raw)], key=lambda request: request.number))
    return ShardResult(requests, started, tuple(shard.lags_ns), shard.cancelled)


def get_ready() -> int:
    """Run once in each worker ahead of time, so that the first run finds everything imported. Returns the worker's process id."""
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0.05))  # long enough that a second call lands in another worker
    return os.getpid()


def _prepare(plan: ShardPlan, number: int) -> tuple[bytes, str]:
    prompt = draw_prompt(plan.draw, number)
    content = body(plan.target, plan.api, prompt.text, plan.output_tokens)
    return http_request(plan.target, PATHS[plan.api], content), prompt.digest


async def _drive(shard: _Shard) -> int:
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(_probe(shard))
        if shard.plan.concurrency:
            await shard.endpoint.connect(min(shard.plan.concurrency, len(shard.sends)))
        started_unix_ns, start_ns = time.time_ns(), perf_counter_ns()
        pattern: Callable[[_Shard, int], Awaitable[None]] = _closed_loop if shard.plan.concurrency else _open_loop
        await pattern(shard, start_ns)
        probe.cancel()
    shard.endpoint.close()
    return started_unix_ns


async def _closed_loop(shard: _Shard, start_ns: int) -> None:
    numbers = iter(shard.plan.numbers)
    async with asyncio.TaskGroup() as group:
        for _ in range(shard.plan.concurrency):
            group.create_task(_slot(shard, numbers, start_ns))


async def _slot(shard: _Shard, numbers: Iterator[int], intended_ns: int) -> None:
    """One user: the next request is due the moment the last byte of the one before has come."""
    failures = 0
    for number in numbers:
        exchange = await shard.send(number, intended_ns)
        intended_ns = exchange.reads[-1][0] if exchange.reads else perf_counter_ns()
        failures = failures + 1 if exchange.failure else 0
        if shard.cancelled or failures >= GIVE_UP_AFTER:
            return


async def _open_loop(shard: _Shard, start_ns: int) -> None:
    room = asyncio.Semaphore(MOST_IN_FLIGHT)

    async def send(number: int, due_ns: int) -> None:
        try:
            await shard.send(number, due_ns)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for number in shard.plan.numbers:
            due_ns = start_ns + round(shard.plan.offsets_s[number] * 1e9)
            await _sleep_until(due_ns, shard)
            await room.acquire()
            if shard.cancelled:
                return
            group.create_task(send(number, due_ns))


async def _sleep_until(due_ns: int, shard: _Shard) -> None:
    """Timers are good to a millisecond: the last one is spent in turns of the loop. Returns early when cancelled."""
    while (left_ns := due_ns - perf_counter_ns()) > 0 and not shard.cancelled:  # noqa: ASYNC110 - no event says that time has passed
        await asyncio.sleep(min(left_ns / 1e9 - 0.001, 0.1) if left_ns > 1_500_000 else 0)


async def _probe(shard: _Shard) -> None:
    """Samples the lag of this loop, and looks for the order to stop."""
    turn = 0
    while True:
        before = perf_counter_ns()
        await asyncio.sleep(PROBE_S)
        shard.lags_ns.append(max(0, perf_counter_ns() - before - round(PROBE_S * 1e9) - TIMER_NS))
        turn += 1
        if turn % 5 == 0 and _exists(shard.plan.cancel_path):
            shard.cancel()


def _exists(path: str) -> bool:
    """A stat of a local file takes microseconds."""
    return path != "" and os.path.exists(path)


def _raise_file_limit() -> None:
    """One descriptor a connection: use what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
