"""From a job file to its verdict: runs of the warm-up are dropped by themselves, kept, and shown; a
launch that never settles says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cold_server import Cold, cold_server

LIMIT_S = 120
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: cold
model: {{path: m}}
engine: {{kind: external, url: "{url}"}}
workloads:
  single: {{concurrency: 1, requests: 2, prompts: builtin:chat, output_tokens: 40}}
measure: {{launches: 1, runs: {runs}, precision: 4%, warmup: {warmup}}}
"""


def fleetctl(folder: Path, *words: str) -> str:
    env = {**os.environ, "BENCHFLEET_STATE": str(folder / "state")}
    argv = [sys.executable, "-m", "fleet_controller.cli.main", *words]
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(
    folder: Path, cold: Cold, runs: str, warmup: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `compare` says of the job's only row, and `show` of the job."""
    with cold_server(cold) as url:
        (folder / "job.yaml").write_text(JOB.format(url=url, runs=runs, warmup=warmup))
        comparison = json.loads(fleetctl(folder, "run", str(folder / "job.yaml"), "--json"))
    (row,) = [row for row in comparison["rows"] if row["metric"] == "output_tok_s"]
    return row, json.loads(fleetctl(folder, "show", comparison["job"], "--json"))


def codes(row: dict[str, Any]) -> dict[str, int]:
    return {
        gate["code"]: gate["count"]
        for gate in row["gates"]
        if gate["code"] in ("warming_up", "not_steady")
    }


def test_the_first_runs_of_a_server_that_is_still_cold_are_kept_and_do_not_count(
    tmp_path: Path,
) -> None:
    row, shown = measured(
        tmp_path, Cold(answers=1 + 2 * 2), "{min: 5, max: 12}", "auto"
    )  # the warm-up's request, and two runs of two
    assert codes(row) == {"warming_up": 2}
    assert row["mean"] == pytest.approx(40 / 0.08, rel=0.1)
    assert [(run["workload"], run["run"], run["gates"]) for run in shown["kept_out"]] == [
        ("single", 1, ["warming_up"]), ("single", 2, ["warming_up"]),
    ]  # fmt: skip
    table = fleetctl(tmp_path, "show", shown["job"])
    assert "runs that are stored but not used in any number:" in table
    assert "warming_up" in table


def test_a_server_that_does_not_settle_within_the_runs_allowed_is_flagged_and_all_its_runs_count(
    tmp_path: Path,
) -> None:
    row, shown = measured(tmp_path, Cold(answers=1 + 2 * 3), "{min: 5, max: 5}", "auto")
    assert (codes(row), row["runs"], shown["kept_out"]) == ({"not_steady": 1}, 5, [])


def test_a_warm_up_of_a_given_length_is_all_the_warm_up_there_is(tmp_path: Path) -> None:
    row, shown = measured(tmp_path, Cold(answers=4 + 2 * 2), "{min: 5, max: 5}", "4")
    assert (codes(row), row["runs"], shown["kept_out"]) == ({}, 5, [])
