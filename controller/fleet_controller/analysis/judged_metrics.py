"""Chooses the metrics that get a verdict. Other metrics are shown with their ratio only."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_controller.core.job import Job
from fleet_protos.metric_names import E2E_P50, OUTPUT_TOK_S, TPOT_MEAN, TTFT_P50

CLOSED_LOOP = (OUTPUT_TOK_S,)
# In an open loop the job sets the throughput, so that it says nothing about the server.
OPEN_LOOP = (TTFT_P50, TPOT_MEAN, E2E_P50)


def judged_metrics(job: Job) -> Mapping[str, tuple[str, ...]]:
    """Return workload name -> metrics that get a verdict. A search is judged by its limit."""
    return {
        workload.name: job.judge.get(
            workload.name, CLOSED_LOOP if workload.concurrency else OPEN_LOOP
        )
        for workload in job.workloads
    }
