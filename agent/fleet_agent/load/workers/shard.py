"""Runs a shard in a Ray worker: sends one worker's share of a run, with its own event loop, clock
and time limit. Answers are decoded after the run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter_ns
from typing import Any, Final

import uvloop

from fleet_agent.load.client.native.library import load_library
from fleet_agent.load.client.request_body import PATHS, completion_body, http_request
from fleet_agent.load.client.request_record import ErrorName, RequestRecord
from fleet_agent.load.client.response_decoder import decode_response
from fleet_agent.load.client.timed_http_client import Endpoint, Exchange, LoadConnection
from fleet_agent.load.results.request_columns import ColumnsBuilder
from fleet_agent.load.workers.loop_lag import LoopLag
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult
from fleet_agent.load.workers.start_gate import StartGate
from fleet_agent.load.workload.prompt_content import Messages
from fleet_agent.load.workload.request_plan import build_request_plan
from fleet_agent.load.workload.slot_schedule import first_due_ns
from fleet_protos.trial_types import Workload

MAX_FAILURES_IN_A_ROW: Final = 2  # a slot then sends no more: the run is void anyway
# in one shard of an open loop; further requests wait, and their delay is recorded
MAX_IN_FLIGHT: Final = 16_384
SPARE_FILES: Final = 64  # file descriptors left for everything but the requests in flight
READ_COST_BYTES: Final = 16  # memory of a recorded read in addition to its content
NAP_NS: Final = 300_000  # the loop may be blocked this long: the kernel records arrival times
SPIN_NS: Final = 100_000  # the system's timers are usually late by at most this


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """Holds the bytes of one request, the digest of its prompt and the number of
    requested tokens.
    """

    content: bytes
    digest: str
    output_tokens: int


@dataclass(slots=True)
class _RawExchange:
    number: int
    intended_ns: int
    digest: str
    asked_tokens: int
    exchange: Exchange


class _PreparedRequests:
    """Builds the requests of a shard. The first ones, up to the plan's limits, are built before the
    start; all later requests are built when they are sent. A request is not kept after it was sent.
    """

    def __init__(self, plan: ShardPlan) -> None:
        """Raise ValueError for a plan that cannot be sent."""
        self._plan = plan
        self.request_plan = plan.request_plan or build_request_plan(
            Workload(prompts=plan.draw.prompts, output_tokens=plan.output_tokens), plan.draw
        )
        self._ahead: dict[int, _PreparedRequest] = {}
        left = plan.limits.prepared_bytes
        for number in plan.numbers[: plan.limits.prepared]:
            self._ahead[number] = send = self._prepare(number)
            if (left := left - len(send.content)) < 0:
                break

    def pop_or_make(self, number: int, history: Messages = ()) -> _PreparedRequest:
        return self._ahead.pop(number, None) or self._prepare(number, history)

    def _prepare(self, number: int, history: Messages = ()) -> _PreparedRequest:
        ask = self.request_plan.planned_request(number, history)
        content = completion_body(self._plan.target, self._plan.api, ask.prompt, ask.output_tokens)
        return _PreparedRequest(
            http_request(self._plan.target, PATHS[self._plan.api], content),
            ask.digest,
            ask.output_tokens,
        )


@dataclass(slots=True)
class _Shard:
    """Holds the state of a running shard."""

    plan: ShardPlan
    endpoint: Endpoint
    sends: _PreparedRequests
    done: ColumnsBuilder
    raw: deque[_RawExchange] = field(default_factory=deque)
    raw_bytes: int = 0
    lag: LoopLag = field(default_factory=LoopLag)
    in_flight: set[LoadConnection] = field(default_factory=set)
    start: StartGate = field(default_factory=StartGate)
    cancelled: bool = False
    expired: bool = False
    started_unix_ns: int = 0
    start_ns: int = 0  # 0: not begun
    cpu_s: float = 0.0
    reads: int = 0

    async def send(self, number: int, intended_ns: int, history: Messages = ()) -> Exchange:
        """Send one request, wait for the end of its answer and record the answer, even a failed
        one. `history` contains the earlier messages of its session.
        """
        mine: list[LoadConnection] = []

        def track(connection: LoadConnection) -> None:
            mine.append(connection)
            self.in_flight.add(connection)

        send = self.sends.pop_or_make(number, history)
        exchange = await self.endpoint.exchange(send.content, self.plan.timeout_s, track)
        self.in_flight.difference_update(mine)
        self.reads += exchange.deferred_reads.count
        raw = _RawExchange(number, intended_ns, send.digest, send.output_tokens, exchange)
        size = READ_COST_BYTES * exchange.deferred_reads.count + exchange.deferred_reads.size
        if self.raw_bytes + size > self.plan.limits.raw_bytes:
            self.done.add(_decode_raw(raw))
        else:
            self.raw.append(raw)
            self.raw_bytes += size
        return exchange

    def cancel(self) -> None:
        """End all requests in flight and send no more requests."""
        self.cancelled = True
        for connection in tuple(self.in_flight):
            connection.cancel()

    def check_stop(self) -> None:
        """End the shard if it was cancelled or has reached its time limit."""
        limit_s = self.plan.limit_s
        self.expired = self.expired or bool(
            limit_s and self.start_ns and perf_counter_ns() - self.start_ns > limit_s * 1e9
        )
        if self.expired or self.start.is_cancelled or _exists(self.plan.cancel_path):
            self.cancel()

    def result(self) -> ShardResult:
        """Decode the answers and return all that was measured."""
        began = time.perf_counter()
        while self.raw:
            self.done.add(_decode_raw(self.raw.popleft()))
        decode_s = time.perf_counter() - began
        columns, lags_ns = self.done.build(), tuple(self.lag.drain_samples())
        return ShardResult(
            columns,
            self.started_unix_ns,
            lags_ns,
            self.cancelled,
            self.start_ns,
            self.expired,
            self.cpu_s,
            decode_s,
            self.reads,
            "python" if load_library() is None else "c",
        )


def _decode_raw(raw: _RawExchange) -> RequestRecord:
    exchange = raw.exchange
    response = decode_response(
        exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail
    )
    sent_ns = 0 if exchange.failure == ErrorName.CONNECT else exchange.sent_ns
    return RequestRecord(
        raw.number, raw.intended_ns, sent_ns, raw.digest, response, raw.asked_tokens
    )


def run_shard(
    plan: ShardPlan, start: StartGate | None = None, tls: ssl.SSLContext | None = None
) -> ShardResult:
    """Run a shard and return what it measured, failed requests included. Raises ValueError for a
    plan that cannot be sent.

    `start` decides when the shard begins (default: at once). `tls` is the TLS context for an https
    server (default: the host's trust store).
    """
    _raise_file_limit()
    done = ColumnsBuilder(plan.spill_path, plan.limits.chunks)
    shard = _Shard(
        plan,
        Endpoint(plan.target.url, tls),
        _PreparedRequests(plan),
        done,
        start=start or StartGate.already_open(),
    )
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_drive(shard))
        return shard.result()
    finally:
        gc.enable()


def preload_shard() -> int:
    """Import all that a shard needs, so that the first run need not wait for it. Runs once in each
    worker. Return the worker's process id.
    """
    _raise_file_limit()
    load_library()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0.05))  # long enough that a second call goes to another worker
    return os.getpid()


async def _drive(shard: _Shard) -> None:
    """Run the shard until its requests are done.

    Raises the error of any callback of the event loop, for example from reading a socket. Without
    this, requests would wait until their timeout.
    """
    broken: list[BaseException] = []

    def broke(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        broken.append(context.get("exception") or RuntimeError(context["message"]))
        shard.cancel()

    asyncio.get_running_loop().set_exception_handler(broke)
    try:
        await _carry_out(shard)
    finally:
        shard.endpoint.close()
    if broken:
        raise broken[0]


async def _carry_out(shard: _Shard) -> None:
    async with asyncio.TaskGroup() as group:
        lag_task = group.create_task(shard.lag.sample(_every_other(shard.check_stop)))
        if shard.plan.concurrency:
            await shard.endpoint.connect(min(shard.plan.concurrency, len(shard.plan.numbers)))
        begin_ns = await shard.start.wait_to_begin()
        shard.check_stop()  # the gate may have opened because of a cancellation
        await _sleep_until(begin_ns, shard)
        shard.started_unix_ns, shard.start_ns = time.time_ns(), perf_counter_ns()
        shard.lag.drain_samples()  # drop the samples from before the start
        pattern: Callable[[_Shard, int], Awaitable[None]] = (
            _closed_loop if shard.plan.concurrency else _open_loop
        )
        reader = shard.endpoint.reader
        used_s = time.thread_time() + reader.cpu_s
        if not shard.cancelled:
            await pattern(shard, shard.start_ns)
        shard.cpu_s = time.thread_time() + reader.cpu_s - used_s
        lag_task.cancel()


async def _closed_loop(shard: _Shard, start_ns: int) -> None:
    plan = shard.plan
    numbers = iter(plan.numbers)
    async with asyncio.TaskGroup() as group:
        for slot in range(plan.concurrency):
            due_ns = start_ns + first_due_ns(
                plan.first + slot * plan.step, plan.users or plan.concurrency
            )
            await _sleep_until(due_ns, shard)
            if shard.cancelled:
                return
            group.create_task(_slot(shard, numbers, due_ns))


async def _slot(shard: _Shard, numbers: Iterator[int], intended_ns: int) -> None:
    """Act as one user: send a request, or a session, as soon as the last byte of the previous
    answer has arrived.
    """
    failures = 0
    send_one: Callable[[_Shard, int, int], Awaitable[Exchange]] = (
        _session if shard.plan.turns > 1 else _Shard.send
    )
    for number in numbers:
        exchange = await send_one(shard, number, intended_ns)
        intended_ns = _ended_ns(exchange)
        failures = failures + 1 if exchange.failure else 0
        if shard.cancelled or failures >= MAX_FAILURES_IN_A_ROW:
            return


async def _session(shard: _Shard, first: int, intended_ns: int) -> Exchange:
    """Send the requests of one session, one after another, until a request fails. Each request
    carries the earlier messages. Return the last exchange.
    """
    plan, request_plan = shard.plan, shard.sends.request_plan
    history: Messages = ()
    exchange = await shard.send(first, intended_ns)
    for number in range(first + 1, min(first + plan.turns, plan.requests)):
        answer = decode_response(exchange.reads, closed=exchange.closed, failure=exchange.failure)
        if answer.error_kind or shard.cancelled:
            break
        history = request_plan.extend_history(number - 1, history, answer.text)
        due_ns = _ended_ns(exchange) + round(request_plan.think_s(number, plan.think_s) * 1e9)
        await _think_until(due_ns, shard)
        exchange = await shard.send(number, due_ns, history)
    return exchange


def _ended_ns(exchange: Exchange) -> int:
    return exchange.deferred_reads.last_ns or perf_counter_ns()


async def _think_until(due_ns: int, shard: _Shard) -> None:
    """Wait until `due_ns` without a nap that blocks the loop, because other sessions share the
    loop. The last millisecond is spent in turns of the loop.
    """
    while (left_ns := due_ns - perf_counter_ns()) > 0 and not shard.cancelled:  # noqa: ASYNC110 - time passing sets no event
        await asyncio.sleep(min(left_ns / 1e9 - 0.001, 0.1) if left_ns > 1_500_000 else 0)


async def _open_loop(shard: _Shard, start_ns: int) -> None:
    slots = asyncio.Semaphore(_max_in_flight())

    async def send(number: int, due_ns: int) -> None:
        try:
            await shard.send(number, due_ns)
        finally:
            slots.release()

    async with asyncio.TaskGroup() as group:
        for number in shard.plan.numbers:
            due_ns = start_ns + round(shard.plan.offsets_s[number] * 1e9)
            await _sleep_until(due_ns, shard)
            await slots.acquire()
            if shard.cancelled:
                return
            group.create_task(send(number, due_ns))


async def _sleep_until(due_ns: int, shard: _Shard) -> None:
    """Wait until `due_ns`. Return early if the shard is cancelled.

    The loop's timers are accurate only to a millisecond. The last millisecond is therefore spent in
    short naps, and the end of it in turns of the loop.
    """
    while (left_ns := due_ns - perf_counter_ns()) > 0 and not shard.cancelled:
        if left_ns > 1_500_000:
            await asyncio.sleep(min(left_ns / 1e9 - 0.001, 0.1))
        else:
            if left_ns > 2 * SPIN_NS:
                time.sleep(min(left_ns - SPIN_NS, NAP_NS) / 1e9)  # noqa: ASYNC251 - spinning would take the core from other processes
            await asyncio.sleep(0)


def _every_other(check: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `check` at every second call, so that the disk is read less
    often than the lag is sampled.
    """
    calls = count(1)
    return lambda: check() if next(calls) % 2 == 0 else None


def _exists(path: str) -> bool:
    return path != "" and os.path.exists(path)


def _max_in_flight() -> int:
    return max(1, min(MAX_IN_FLIGHT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES))


def _raise_file_limit() -> None:
    """Allow this process as many file descriptors as the system permits, because each connection
    needs one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
