"""Owns the Prometheus series that only the controller has: its hosts by state. Labels are bounded."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from fleet_controller.core.quarantine import HOST_STATES
from fleet_protos.metric_names import PROM_HOSTS


class HostSeries:
    """How many hosts are in which state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._hosts = Gauge(
            PROM_HOSTS,
            "Hosts by state: free, busy, drained, aside (after failures), away",
            ("state",),
            registry=registry,
        )

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Every state has a number, so that an alert sees the fall to 0."""
        for state in HOST_STATES:
            self._hosts.labels(state).set(counts.get(state, 0))
