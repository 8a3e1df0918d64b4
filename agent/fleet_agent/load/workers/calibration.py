"""Measures how much load one shard can send on this host. The shard's own client talks to a null
server, and the client's CPU time is measured.

CPU time is used instead of wall time, so that other work on the host has little effect. A shard is
one event loop on one core: it is the limit when its events and requests need all CPU time of that
core. The best of several rounds counts, because disturbances only add time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import uvloop

from fleet_agent.load.client.request_body import LoadTarget, http_request
from fleet_agent.load.client.timed_http_client import Endpoint
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.workers.null_server import LONG_PATH, SHORT_PATH, NullServer
from fleet_protos import metric_names as names

if TYPE_CHECKING:
    from fleet_agent.load.workers.shard_plan import ShardResult

STREAMS: Final = 64  # concurrent streams, as under a load near the limit
ROUNDS: Final = 3
ROUNDS_LIMIT_S: Final = 0.12  # for the rounds of one kind: a busy host runs fewer rounds
EVENTS: Final = 40  # per stream and round
SHORT_REQUESTS: Final = 128  # per round
LIMIT_S: Final = 2.0  # timeout of one answer: only a stuck host takes that long


@dataclass(frozen=True, slots=True)
class ShardCapacity:
    """Holds the most that one shard can do.

    `tok_s`: the tokens per second that it can receive, if each read brings one token.
    `requests_s`: the requests per second that it can send, if each answer has one token.
    """

    tok_s: float
    requests_s: float

    def used_share(self, reads: int, requests: int, wall_s: float, shards: int) -> float:
        """Return which share of the capacity of `shards` shards a run used."""
        taken_s = reads / self.tok_s + requests / self.requests_s
        return taken_s / (wall_s * shards)


@dataclass(frozen=True, slots=True)
class ClientWork:
    """Holds how much work the shards of a run did.

    `reads`: how often they read from a connection.
    `cpu_s`: the CPU seconds that they used; 0 if unknown.
    `time_scale`: model seconds per wall second.
    """

    reads: int
    shards: int
    cpu_s: float = 0.0
    time_scale: float = 1.0

    @staticmethod
    def from_results(
        results: Sequence[ShardResult], *, is_open: bool, time_scale: float
    ) -> ClientWork:
        """Return the total work of all shards. In an open loop the CPU seconds are unknown, because
        shards also use a core to wait for the moment to send.
        """
        cpu_s = 0.0 if is_open else sum(result.cpu_s for result in results)
        return ClientWork(sum(result.reads for result in results), len(results), cpu_s, time_scale)


def calibrate(limit_s: float = LIMIT_S) -> ShardCapacity | None:
    """Return the capacity of a shard, measured for 0.2 to 0.3 s in the calling thread. Return None
    if loopback does not work or an answer failed; a run does not need the result.

    `limit_s` is the timeout of each answer.
    """
    collects = gc.isenabled()
    gc.disable()  # as a shard does
    try:
        with (
            NullServer(EVENTS) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_calibrate_and_close(_Users(server, Endpoint(server.url), limit_s)))
    except OSError:
        return None
    finally:
        if collects:
            gc.enable()


async def _calibrate_and_close(users: _Users) -> ShardCapacity | None:
    try:
        return await _measure_capacity(users)
    finally:
        users.endpoint.close()


async def _measure_capacity(users: _Users) -> ShardCapacity | None:
    target = LoadTarget(users.server.url)
    short, long = (http_request(target, path, {"stream": True}) for path in (SHORT_PATH, LONG_PATH))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(users.server.serve())
        await users.endpoint.connect(STREAMS)
        await users.drive(short, STREAMS)  # warm up
        request_s = await users.measure_best(
            short, SHORT_REQUESTS, lambda cost: cost.cpu_s / SHORT_REQUESTS
        )
        read_s = await users.measure_best(
            long, STREAMS, lambda cost: cost.cpu_s / max(1, cost.reads)
        )
        serving.cancel()
    # the CPU clock may be too coarse
    is_known = not users.failed and request_s > 0 and read_s > 0
    return ShardCapacity(1 / read_s, 1 / request_s) if is_known else None


@dataclass(frozen=True, slots=True)
class _Cost:
    """Holds the CPU seconds that the client used in a round, and how often it read."""

    cpu_s: float
    reads: int


@dataclass(slots=True)
class _Users:
    """Acts as `STREAMS` concurrent users. Each user sends one request after another."""

    server: NullServer
    endpoint: Endpoint
    limit_s: float
    failed: bool = False  # a request failed: send no more
    reads: int = 0

    async def measure_best(
        self, request: bytes, count: int, unit_s: Callable[[_Cost], float]
    ) -> float:
        """Run some rounds and return the lowest value of `unit_s`."""
        until_s = time.monotonic() + ROUNDS_LIMIT_S
        best_s = unit_s(await self.drive(request, count))
        for _ in range(ROUNDS - 1):
            if time.monotonic() < until_s and not self.failed:
                best_s = min(best_s, unit_s(await self.drive(request, count)))
        return best_s

    async def drive(self, request: bytes, count: int) -> _Cost:
        """Send `count` requests. Return what they cost the client."""
        numbers = iter(range(count))
        before_s, reads = self._client_cpu_s(), self.reads
        async with asyncio.TaskGroup() as group:
            for _ in range(min(STREAMS, count)):
                group.create_task(self._send(request, numbers))
        return _Cost(self._client_cpu_s() - before_s, self.reads - reads)

    def _client_cpu_s(self) -> float:
        return time.thread_time() + self.endpoint.reader.cpu_s - self.server.cpu_s

    async def _send(self, request: bytes, numbers: Iterator[int]) -> None:
        for _ in numbers:
            if self.failed:
                return
            exchange = await self.endpoint.exchange(request, self.limit_s)
            self.reads += exchange.deferred_reads.count
            self.failed = self.failed or bool(exchange.failure or exchange.closed)


@dataclass(slots=True)
class Calibration:
    """Measures the capacity of a shard at the first use and remembers the result, even if it is
    None.
    """

    capacity: ShardCapacity | None = None
    is_done: bool = False

    async def measure_once(self) -> ShardCapacity | None:
        """Return the result of `calibrate`. It runs in a thread, so that the event loop can read
        orders at the same time.
        """
        if not self.is_done:
            self.capacity = await asyncio.to_thread(calibrate)
            self.is_done = True
        return self.capacity


def add_client_use(
    summary: LoadReply, capacity: ShardCapacity | None, work: ClientWork
) -> LoadReply:
    """Return the summary with the share of its shards' capacity that the run used, as facts for the
    gates and as metrics. Only wall time is used here.

    To wake up for a few reads costs more than the calibration shows. Therefore the share of CPU
    time that the shards used counts instead, if it is larger or if the capacity is unknown. The
    summary is unchanged if neither is known.
    """
    wall_s = summary.duration_s / work.time_scale
    if not wall_s > 0 or (capacity is None and not work.cpu_s):
        return summary
    uses, found = [work.cpu_s / (wall_s * work.shards)], {}
    if capacity is not None:
        uses.append(
            capacity.used_share(
                work.reads, summary.requests_ok + summary.requests_failed, wall_s, work.shards
            )
        )
        found[names.CLIENT_CAPACITY] = capacity.tok_s * work.shards
    facts = {
        **summary.facts,
        "client_capacity_tok_s": found.get(names.CLIENT_CAPACITY),
        "client_use": max(uses),
    }
    metrics = {**summary.metrics, **found, names.CLIENT_USE: max(uses)} if summary.metrics else {}
    return replace(summary, metrics=metrics, facts=facts)
