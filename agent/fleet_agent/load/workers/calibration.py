"""Owns what one shard can drive on this host: its own client against a null server, by the CPU time
that it takes. Knows no run's load.

CPU time, not wall time, so that a neighbour on the host counts as little as may be: a shard is one
loop on one core, and when its events and requests need as much CPU as there is time, it is the
limit. The best of several rounds, for what disturbs one only adds to it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import uvloop

from fleet_agent.load.client.http_client import Endpoint
from fleet_agent.load.client.request_body import LoadTarget, http_request
from fleet_agent.load.workers.null_server import LONG_PATH, SHORT_PATH, NullServer
from fleet_protos import metric_names as names

if TYPE_CHECKING:
    from fleet_agent.load.results.run_summary import RunSummary
    from fleet_agent.load.workers.shard_plan import ShardResult

STREAMS: Final = 64  # so many at a time, as under a load that comes near the limit
ROUNDS: Final = 3
ROUNDS_LIMIT_S: Final = 0.12  # of each kind: on a busy host there are fewer
EVENTS: Final = 40  # of each stream, in each round
SHORT_REQUESTS: Final = 128  # in each round
LIMIT_S: Final = (
    2.0  # for any one answer: far beyond what it takes, so that a stuck host is noticed
)


@dataclass(frozen=True, slots=True)
class ShardCapacity:
    """The most that one shard can drive: of streams at a token a read, their requests included, and
    of answers of one token.
    """

    tok_s: float
    requests_s: float

    def used_share(self, reads: int, requests: int, wall_s: float, shards: int) -> float:
        """The share of it that a run took, spread over so many shards."""
        taken_s = reads / self.tok_s + requests / self.requests_s
        return taken_s / (wall_s * shards)


@dataclass(frozen=True, slots=True)
class ClientWork:
    """What the shards of a run did: how often they read, and seconds of a core that it took them
    (0: not known).

    `time_scale`: model time by wall time.
    """

    reads: int
    shards: int
    cpu_s: float = 0.0
    time_scale: float = 1.0

    @staticmethod
    def from_results(
        results: Sequence[ShardResult], *, is_open: bool, time_scale: float
    ) -> ClientWork:
        """That of these shards. Those of an open loop also use a core to wait for the moment to
        send, which is no load.
        """
        cpu_s = 0.0 if is_open else sum(result.cpu_s for result in results)
        return ClientWork(sum(result.reads for result in results), len(results), cpu_s, time_scale)


def calibrate(limit_s: float = LIMIT_S) -> ShardCapacity | None:
    """Measure for 0.2 to 0.3 s, in the calling thread; None where loopback does not work or an
    answer failed, which is no reason to stop.

    `limit_s`: no answer takes longer.
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
        await users.drive(short, STREAMS)  # so that what is measured is no first time
        request_s = await users.measure_best(
            short, SHORT_REQUESTS, lambda cost: cost.cpu_s / SHORT_REQUESTS
        )
        read_s = await users.measure_best(
            long, STREAMS, lambda cost: cost.cpu_s / max(1, cost.reads)
        )
        serving.cancel()
    is_known = (
        not users.failed and request_s > 0 and read_s > 0
    )  # a clock of CPU time may be too coarse
    return ShardCapacity(1 / read_s, 1 / request_s) if is_known else None


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of a round: seconds of a core that the client took, and how often it read."""

    cpu_s: float
    reads: int


@dataclass(slots=True)
class _Users:
    """`STREAMS` of them at a time, each with one request after the other."""

    server: NullServer
    endpoint: Endpoint
    limit_s: float
    failed: bool = False  # one had no answer: nothing more is sent
    reads: int = 0

    async def measure_best(
        self, request: bytes, count: int, unit_s: Callable[[_Cost], float]
    ) -> float:
        """The least that some rounds took, by `unit_s`."""
        until_s = time.monotonic() + ROUNDS_LIMIT_S
        best_s = unit_s(await self.drive(request, count))
        for _ in range(ROUNDS - 1):
            if time.monotonic() < until_s and not self.failed:
                best_s = min(best_s, unit_s(await self.drive(request, count)))
        return best_s

    async def drive(self, request: bytes, count: int) -> _Cost:
        """A round of `count` requests."""
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
    """The capacity of one load process's shards: measured when it is first asked for, and
    remembered, also where there is none.
    """

    capacity: ShardCapacity | None = None
    is_done: bool = False

    async def measure_once(self) -> ShardCapacity | None:
        """What `calibrate` found, in a thread so that orders are heard meanwhile."""
        if not self.is_done:
            self.capacity = await asyncio.to_thread(calibrate)
            self.is_done = True
        return self.capacity


def add_client_use(
    summary: RunSummary, capacity: ShardCapacity | None, work: ClientWork
) -> RunSummary:
    """The summary with what its run took of what its shards can drive, as facts for the gates and
    as metrics. All of it is wall time.

    Waking up for little news costs more than the calibration shows: the share of their cores that
    the shards used counts where it is more, and alone where there is no capacity. Without either
    there is nothing to say.
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
