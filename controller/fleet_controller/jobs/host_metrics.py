"""The Prometheus series that counts the controller's hosts by state."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from fleet_controller.core.quarantine import HOST_STATES
from fleet_protos.metric_names import PROM_HOSTS


class HostSeries:
    """The Prometheus series that counts the controller's hosts by state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._hosts = Gauge(
            PROM_HOSTS,
            "Hosts by state: free, busy, drained, aside (quarantined after failures), away",
            ("state",),
            registry=registry,
        )

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Set the number of hosts in each state. A state without hosts is set to 0, so that an
        alert sees the change to 0.
        """
        for state in HOST_STATES:
            self._hosts.labels(state).set(counts.get(state, 0))
