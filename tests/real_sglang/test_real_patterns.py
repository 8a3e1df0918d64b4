"""Owns the promises of load patterns on a real SGLang: ids, shared beginnings, sessions and a trace
are what the server saw.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fleet_protos import events as ev
from fleet_protos.attachment import Trace, file_ref, pack
from fleet_protos.trial_types import (
    AttachedFile,
    Lengths,
    Measure,
    Outcome,
    Part,
    SharedPrefix,
    Workload,
)
from tests.real_sglang.trials import example, run_with_load

pytestmark = pytest.mark.real_sglang

VOCABULARY = 494  # of the tiny model: a scheduler of SGLang 0.5.23 dies at an id beyond it
TRACE = Trace((0, 500, 1500), (300, 400, 60), (8, 12, 16), ((1,), (1,), ()))
FILE = AttachedFile("trace:a.csv", "0" * 64, pack(TRACE))
CHAT = {"concurrency": 1, "api": "chat", "cache": "flush", "request_timeout_s": 60.0}
WORKLOADS = (
    Workload(
        "ids", concurrency=1, requests=2, api="generate", prompts="random:ids", input_tokens=120, output_tokens=8, vocabulary=VOCABULARY,
        request_timeout_s=60.0,
    ),
    Workload("groups", requests=6, mix=(Part(1, "builtin:chat", 8, prefix=SharedPrefix(2, 200)),), **CHAT),  # type: ignore[arg-type]
    Workload("chats", requests=3, turns=3, think_s=0.2, mix=(Part(1, "builtin:chat", 12),), **CHAT),  # type: ignore[arg-type]
    Workload("lengths", concurrency=2, requests=4, prompts="builtin:code", output=Lengths("uniform", 4, 24), api="chat"),
    Workload("replay", trace=file_ref(FILE), requests=3, api="chat", cache="flush", request_timeout_s=60.0),
)  # fmt: skip


def test_a_real_server_is_asked_what_the_patterns_say(tmp_path: Path) -> None:
    measure = Measure(runs_min=1, runs_max=1, precision=0.5, warmup_requests=1)
    spec = replace(
        example(), trial_id="patterns", workloads=WORKLOADS, measure=measure, files=(FILE,)
    )
    told = asyncio.run(run_with_load(spec, tmp_path))
    assert told.one(ev.TrialOver).outcome is Outcome.OK, told.one(ev.TrialOver).message
    runs = {body.run.workload: body.run for body in told.bodies if isinstance(body, ev.RunFinished)}
    assert set(runs) == {workload.name for workload in WORKLOADS}
    assert {gate.code for run in runs.values() for gate in run.gates} <= {
        "client_limited",
        "token_count_unchecked",
    }
    raw = {
        name: pd.read_parquet(next(tmp_path.rglob(f"{name}-001.parquet"))).sort_values("request")
        for name in runs
    }
    assert raw["ids"]["prompt_tokens"].tolist() == [120, 120]
    shares = (raw["groups"]["cached_tokens"].fillna(0) / raw["groups"]["prompt_tokens"]).tolist()
    assert max(shares[:2]) < 0.1 and min(shares[2:]) > 0.5
    turns = raw["chats"]
    assert all(
        later > earlier
        for earlier, later in zip(
            turns["prompt_tokens"][:-1], turns["prompt_tokens"][1:], strict=True
        )
    )
    assert turns["cached_tokens"].tolist()[1] >= turns["prompt_tokens"].tolist()[0] - 4
    assert raw["replay"]["completion_tokens"].tolist() == list(TRACE.output_tokens)
    assert raw["replay"]["cached_tokens"].fillna(0).tolist()[1] > 100
