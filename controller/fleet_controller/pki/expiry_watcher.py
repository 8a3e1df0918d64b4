"""Warns before a certificate expires, by a log line once a day and by a Prometheus series."""

from __future__ import annotations

import asyncio
import logging
import time

from prometheus_client import CollectorRegistry, Gauge

from fleet_controller.pki.authority import Authority
from fleet_controller.pki.expiry import expiry_warning
from fleet_protos.errors import FleetError
from fleet_protos.metric_names import PROM_CERTIFICATE_EXPIRES

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 3600.0
_WARN_INTERVAL_S = 86400.0


class ExpiryWatcher:
    """Checks all certificates once an hour and keeps the Prometheus series of their expiry times.

    The labels of the series are the role and, for an agent, the host. All users share one series,
    which shows the next certificate to expire.
    """

    def __init__(self, authority: Authority, registry: CollectorRegistry) -> None:
        self._authority = authority
        text = "When the certificate expires, in seconds since 1970"
        self._gauge = Gauge(PROM_CERTIFICATE_EXPIRES, text, ("role", "host"), registry=registry)
        self._warned_at_s: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.check_now(time.time_ns() / 1e9)
            await asyncio.sleep(_CHECK_INTERVAL_S)

    def check_now(self, now_unix_s: float) -> None:
        """Update the series. Log a warning for each certificate that expires within 30 days, at
        most once a day for the same certificate.
        """
        try:
            parties = self._authority.expiring(now_unix_s)
        except FleetError as error:
            log.warning("%s", error.message)
            return
        self._gauge.clear()
        # If several parties share a series, the last one is shown: the next to expire.
        for party in reversed(parties):
            self._gauge.labels(party.role, party.name if party.role == "agent" else "").set(
                party.expires_unix_s
            )
        for party in parties:
            key = (party.role, party.name)
            if (
                party.is_near(now_unix_s)
                and now_unix_s - self._warned_at_s.get(key, -_WARN_INTERVAL_S) >= _WARN_INTERVAL_S
            ):
                self._warned_at_s[key] = now_unix_s
                log.warning("%s", expiry_warning(party, now_unix_s))
