"""Provides the Prometheus series of trials and runs that agent and controller both export. Labels
take a limited number of values. The exact results are in the store.
"""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge

from fleet_protos import metric_names as names
from fleet_protos.trial_types import Outcome, Phase, RunResult, TrialSpec, is_void

_GAUGES = {
    names.OUTPUT_TOK_S: (names.PROM_OUTPUT_TOK_S, "Output tokens per second of the last valid run"),
    names.TTFT_P50: (names.PROM_TTFT_P50, "Median time to first token of the last valid run"),
    names.TPOT_MEAN: (names.PROM_TPOT_MEAN, "Mean time per output token of the last valid run"),
    names.ACCEPT_LENGTH: (
        names.PROM_ACCEPT_LENGTH,
        "Tokens per verify step of the last valid run, including the bonus token",
    ),
}


class RunSeries:
    """Holds the series in a registry of its own, so that two instances can exist in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._trials = Gauge(
            names.PROM_TRIALS,
            "Trials by phase and outcome",
            ("phase", "outcome"),
            registry=self.registry,
        )
        self._runs = Counter(
            names.PROM_RUNS,
            "Finished runs, including void runs",
            (*names.RUN_LABELS, "void"),
            registry=self.registry,
        )
        self._gauges = {
            metric: Gauge(name, text, names.RUN_LABELS, registry=self.registry)
            for metric, (name, text) in _GAUGES.items()
        }
        # Prometheus sees an increase only from a value that it has seen, so all begin at 0.
        for outcome in ("ok", "failed", "cancelled"):
            self._trials.labels("over", outcome)
        self._states: dict[str, tuple[str, str]] = {}
        self._tally: Tally[tuple[str, str]] = Tally()

    def record_trial(self, key: str, phase: Phase, outcome: Outcome | None = None) -> None:
        """Record the present phase of a trial, and its outcome once it is over. `key` is
        TRIAL/ATTEMPT.
        """
        state = (phase.name.lower(), outcome.name.lower() if outcome else "none")
        before = self._states.get(key)
        if before == state:
            return
        self._states[key] = state
        for changed, step in ((before, -1), (state, 1)):
            if changed is not None:
                self._tally[changed] += step
                self._trials.labels(*changed).set(self._tally[changed])

    def forget_trial(self, key: str) -> None:
        """Drop the state of a finished trial. It stays counted in its last phase and outcome."""
        self._states.pop(key, None)

    def expect_runs(self, spec: TrialSpec, host: str) -> None:
        """Show the counts of the trial's workloads, at first 0. Call this when the trial begins, so
        that Prometheus has seen them before its first run ends.
        """
        for workload in spec.workloads:
            for void in ("true", "false"):
                self._runs.labels(*_run_labels(spec, workload.name, host), void)

    def record_run(self, spec: TrialSpec, run: RunResult, host: str) -> None:
        """Record a finished run. A void run is counted, but its metrics are not shown."""
        labels = _run_labels(spec, run.workload, host)
        self._runs.labels(*labels, "true" if is_void(run) else "false").inc()
        if is_void(run):
            return
        for metric, gauge in self._gauges.items():
            if metric in run.metrics:
                gauge.labels(*labels).set(run.metrics[metric])


def _run_labels(spec: TrialSpec, workload: str, host: str) -> tuple[str, ...]:
    return host, spec.job_name, spec.variant, workload, spec.engine.kind.name.lower()
