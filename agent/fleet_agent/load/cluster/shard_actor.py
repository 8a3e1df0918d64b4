"""Owns the worker of one load host: carries out shards in one thread and takes orders in others.
Knows no host but its own.
"""

from __future__ import annotations

import os
import ssl
from time import perf_counter_ns

from fleet_agent.load.workers import shard
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult
from fleet_agent.load.workers.start_gate import StartGate


class ShardActor:
    """A Ray actor. `run` keeps one of its threads busy, the orders are called in others."""

    def __init__(self) -> None:
        self._starts: dict[int, StartGate] = {}

    def preload(self) -> int:
        """Have everything imported; the worker's process id."""
        return shard.preload_shard()

    def run(self, number: int, plan: ShardPlan) -> ShardResult:
        """Carry out a share when `begin` says so. Raises what `run_shard` does."""
        start = self._start_gate(number)
        try:
            return shard.run_shard(
                plan, start, _cluster_tls_context() if plan.target.in_cluster else None
            )
        finally:
            start.mark_ended()
            self._starts.pop(number, None)

    def await_prepared(self, number: int) -> None:
        """Return when that run may begin here."""
        self._start_gate(number).await_prepared()

    def now_ns(self) -> int:
        """This host's clock, the one that its times are of."""
        return perf_counter_ns()

    def begin(self, number: int, at_ns: int) -> None:
        """Begin that run at that time of this host's clock."""
        self._start_gate(number).begin(at_ns)

    def cancel(self, number: int) -> None:
        """End that run, even one that has not come here yet; harmless when it is over."""
        self._start_gate(number).cancel()

    def _start_gate(self, number: int) -> StartGate:
        """Whichever thread comes first makes it."""
        return self._starts.setdefault(number, StartGate())


def _cluster_tls_context() -> ssl.SSLContext:
    """This host's certificate and the cluster's authority, where Ray has them from, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    return context
