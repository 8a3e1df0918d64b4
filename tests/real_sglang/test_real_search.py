"""Owns the promise of a search on a real SGLang: a server that runs two requests at once can do
two, and is idle before each load.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_protos import events as ev
from fleet_protos.search_rules import CONCURRENCY
from fleet_protos.trial_types import Measure, Outcome, Search, Slo, Workload
from tests.real_sglang.trials import example, run_with_load

pytestmark = pytest.mark.real_sglang

SLOTS = 2
USERS = Workload(
    "users", requests=12, prompts="builtin:chat", output_tokens=200, api="chat", request_timeout_s=120.0, slo=Slo(ttft_p99_s=1.0),
    search=Search(CONCURRENCY, 1.0, 8.0, 0.05, 0.75),
)  # fmt: skip


def test_a_real_server_of_two_slots_meets_a_limit_on_the_first_token_with_two_users(
    tmp_path: Path,
) -> None:
    spec = example()
    engine = replace(spec.engine, args={**spec.engine.args, "max_running_requests": SLOTS})
    measure = Measure(runs_min=1, runs_max=1, warmup_requests=2)
    told = asyncio.run(
        run_with_load(
            replace(spec, trial_id="search", engine=engine, workloads=(USERS,), measure=measure),
            tmp_path,
        )
    )
    over = told.one(ev.TrialOver)
    runs = [body.run for body in told.bodies if isinstance(body, ev.RunFinished)]
    said = [
        (
            run.searched.load,
            run.searched.met,
            run.metrics.get("ttft_s_p99"),
            run.metrics.get("e2e_s_p50"),
        )
        for run in runs
    ]
    assert over.outcome is Outcome.OK, (over.message, said)
    last = runs[-1].searched
    assert (last.highest_met, last.lowest_not_met, last.ended) == (SLOTS, SLOTS + 1, "found"), said
