"""Provides the agent's Prometheus metrics: its trials by phase and outcome, and the last run of
each series.
"""

from __future__ import annotations

from fleet_protos import events as ev
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import TrialSpec
from fleet_transport.metrics_endpoint import serve_metrics


class AgentMetrics:
    """Updates the metrics with each journalled event. Serves them if `endpoint`, an (address,
    port), is given.
    """

    def __init__(self, host: str, endpoint: tuple[str, int] | None = None) -> None:
        self._host = host
        self.series = RunSeries()
        if endpoint is not None:
            serve_metrics(self.series.registry, endpoint[1], endpoint[0])

    def record(self, event: ev.Event, spec: TrialSpec) -> None:
        """Update the metrics with one journalled event."""
        key, outcome = (
            f"{spec.trial_id}/{spec.attempt}",
            event.body.outcome if isinstance(event.body, ev.TrialOver) else None,
        )
        self.series.record_trial(key, event.phase, outcome)
        if outcome is not None:  # its last event
            self.series.forget_trial(key)
        if isinstance(event.body, ev.TrialAccepted):
            self.series.expect_runs(spec, self._host)
        if isinstance(event.body, ev.RunFinished):
            self.series.record_run(spec, event.body.run, self._host)
