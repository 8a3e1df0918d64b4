"""Runs shards on a load host in one thread, and receives orders in other threads."""

from __future__ import annotations

import os
import ssl
from time import perf_counter_ns

from fleet_agent.load.workers import shard
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult
from fleet_agent.load.workers.start_gate import StartGate


class ShardActor:
    """Implements the Ray actor of a load host. `run` occupies one of its threads; Ray calls the
    orders in other threads.
    """

    def __init__(self) -> None:
        self._starts: dict[int, StartGate] = {}

    def preload(self) -> int:
        """Import all that a shard needs. Return the process id of this worker."""
        return shard.preload_shard()

    def run(self, number: int, plan: ShardPlan) -> ShardResult:
        """Prepare a shard and run it once `begin` is called. Raises what `run_shard` raises."""
        start = self._start_gate(number)
        try:
            return shard.run_shard(
                plan, start, _cluster_tls_context() if plan.target.in_cluster else None
            )
        finally:
            start.mark_ended()
            self._starts.pop(number, None)

    def await_prepared(self, number: int) -> None:
        """Block until run `number` is ready to begin on this host."""
        self._start_gate(number).await_prepared()

    def now_ns(self) -> int:
        """Return the time of the clock that this host uses for all times of a run."""
        return perf_counter_ns()

    def begin(self, number: int, at_ns: int) -> None:
        """Let run `number` begin at `at_ns` of this host's clock."""
        self._start_gate(number).begin(at_ns)

    def cancel(self, number: int) -> None:
        """End run `number` here, even if `run` has not been called yet. Does nothing if the run is
        over.
        """
        self._start_gate(number).cancel()

    def _start_gate(self, number: int) -> StartGate:
        """Return the gate that starts run `number`. The first thread that asks for it
        creates it.
        """
        return self._starts.setdefault(number, StartGate())


def _cluster_tls_context() -> ssl.SSLContext:
    """Return a TLS context with this host's certificate and the cluster's authority. Ray uses the
    same files.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    return context
