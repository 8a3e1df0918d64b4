"""A search from `fleetctl run` to its verdict: on a simulated server of known capacity it finds
what that server can do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

SLOTS = {"slots=few": 5, "slots=many": 9}
JOB = f"""\
apiVersion: benchfleet/v1
kind: Job
name: limits
model: {{path: sim/kimi}}
engine: {{kind: simulated, gpus: 2, args: {{tp_size: 2}}, simulation: {{time_scale: 20}}}}
factors:
  slots:
    few: {{args: {{max_running_requests: {SLOTS["slots=few"]}}}}}
    many: {{args: {{max_running_requests: {SLOTS["slots=many"]}}}}}
baseline: {{slots: few}}
workloads:
  users: {{search: {{of: concurrency, from: 4, to: 16, goodput: 95%}}, output_tokens: 600, slo: {{ttft_p99: 2s}}}}
measure: {{launches: 3}}
"""


def fleetctl(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleet_controller.cli.main", *arguments]
    env = {**os.environ, "BENCHFLEET_STATE": str(state)}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_search_finds_what_each_server_can_do_and_says_which_can_do_more(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    state = tmp_path / "state"
    done = fleetctl(state, "run", str(tmp_path / "job.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout)
    rows = {(row["workload"], row["variant"]): row for row in compared["rows"]}
    assert {(row["workload"], row["metric"]) for row in compared["rows"]} == {
        ("users", "highest_concurrency")
    }
    assert compared["notes"][0].startswith("simulated ×20: a model of time")
    assert "users at 4 at once: met" in done.stderr

    for variant, slots in SLOTS.items():
        limits = rows["users", variant]["limits"]
        assert [(limit["met"], limit["not_met"]) for limit in limits] == [(slots, slots + 1)] * 3, (
            done.stderr
        )
    many = rows["users", "slots=many"]
    assert many["verdict"] == "FASTER"
    assert many["ratio"] == pytest.approx(SLOTS["slots=many"] / SLOTS["slots=few"])

    shown = json.loads(fleetctl(state, "show", compared["job"], "--json").stdout)
    runs_of_each_load_are_kept_and_ask_every_variant_the_same(state, shown)
    table = fleetctl(state, "show", compared["job"]).stdout
    assert "the highest load that meets the SLO, by launch:" in table
    assert "results of each load, over all launches:" in table
    report = fleetctl(state, "report", compared["job"], "--format", "md").stdout
    assert "| slots=many" in report and "highest concurrency" in report


def runs_of_each_load_are_kept_and_ask_every_variant_the_same(
    state: Path, shown: dict[str, Any]
) -> None:
    assert len(shown["searches"]) == 6
    asked: dict[
        tuple[str, float, int], dict[str, tuple[str, ...]]
    ] = {}  # workload, load and its repeat → launch → prompts
    for search in shown["searches"]:
        assert search["ended"] == "found"
        repeats: Counter[float] = Counter()
        for run in search["runs"]:
            repeats[run["load"]] += 1
            name = f"{search['trial']}/{search['attempt']}/{search['workload']}-{run['run']:03d}.parquet"
            [raw, *_] = sorted(state.rglob(name))
            assert float((pq.read_metadata(raw).metadata or {})[b"benchfleet.load"]) == run["load"]
            digests = pd.read_parquet(raw).sort_values("request")["prompt_digest"]
            key = (search["workload"], run["load"], repeats[run["load"]])
            asked.setdefault(key, {})[search["trial"]] = tuple(digests.head(10))
    assert all(len(set(prompts.values())) == 1 for prompts in asked.values())
    assert len(asked["users", 4.0, 1]) == 6
