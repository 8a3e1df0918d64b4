"""Measures how much load one shard can drive on this host: its own client runs against a null
server, and its CPU time counts.

CPU time is used instead of wall time, so that other work on the host has little effect. A shard is
one loop on one core: when its events and requests need as much CPU time as there is, the shard is
the limit. The best of several rounds counts, because disturbances only add time.
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
    """The most that one shard can drive: tokens per second at one token per read, including the
    requests, and requests per second with answers of one token.
    """

    tok_s: float
    requests_s: float

    def used_share(self, reads: int, requests: int, wall_s: float, shards: int) -> float:
        """Return the share of the capacity of `shards` shards that a run used."""
        taken_s = reads / self.tok_s + requests / self.requests_s
        return taken_s / (wall_s * shards)


@dataclass(frozen=True, slots=True)
class ClientWork:
    """The work that the shards of a run did: how often they read, and the CPU seconds that this
    took (0: unknown).

    `time_scale` is model time divided by wall time.
    """

    reads: int
    shards: int
    cpu_s: float = 0.0
    time_scale: float = 1.0

    @staticmethod
    def from_results(
        results: Sequence[ShardResult], *, is_open: bool, time_scale: float
    ) -> ClientWork:
        """Sum up the shards. In an open loop the CPU time is left out: shards also use a core to
        wait for the moment to send, which is not work.
        """
        cpu_s = 0.0 if is_open else sum(result.cpu_s for result in results)
        return ClientWork(sum(result.reads for result in results), len(results), cpu_s, time_scale)


def calibrate(limit_s: float = LIMIT_S) -> ShardCapacity | None:
    """Measure for 0.2 to 0.3 s in the calling thread. Return None if loopback does not work or an
    answer failed; a run can do without the result.

    `limit_s` is the timeout of a single answer.
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
    """The CPU seconds of a round in the client, and how often it read."""

    cpu_s: float
    reads: int


@dataclass(slots=True)
class _Users:
    """`STREAMS` concurrent users, each of whom sends one request after another."""

    server: NullServer
    endpoint: Endpoint
    limit_s: float
    failed: bool = False  # a request failed: send no more
    reads: int = 0

    async def measure_best(
        self, request: bytes, count: int, unit_s: Callable[[_Cost], float]
    ) -> float:
        """Return the lowest value of `unit_s` over some rounds."""
        until_s = time.monotonic() + ROUNDS_LIMIT_S
        best_s = unit_s(await self.drive(request, count))
        for _ in range(ROUNDS - 1):
            if time.monotonic() < until_s and not self.failed:
                best_s = min(best_s, unit_s(await self.drive(request, count)))
        return best_s

    async def drive(self, request: bytes, count: int) -> _Cost:
        """Run a round of `count` requests."""
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
    """The capacity of one load process's shards: measured at the first use, then remembered, even
    if the result is None.
    """

    capacity: ShardCapacity | None = None
    is_done: bool = False

    async def measure_once(self) -> ShardCapacity | None:
        """Return the result of `calibrate`, run in a thread so that the loop can read orders
        meanwhile.
        """
        if not self.is_done:
            self.capacity = await asyncio.to_thread(calibrate)
            self.is_done = True
        return self.capacity


def add_client_use(
    summary: LoadReply, capacity: ShardCapacity | None, work: ClientWork
) -> LoadReply:
    """Add to the summary how much of the capacity of its shards the run used, as facts for the
    gates and as metrics. All of it is wall time.

    Waking up for few reads costs more than the calibration shows. So the share of their cores that
    the shards used counts if it is larger, or if the capacity is unknown. If both are unknown, the
    summary stays as it is.
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
