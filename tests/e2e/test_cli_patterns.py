"""Files of a job from `fleetctl run` to the raw data: every variant is asked the same, in the same
order, in each run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: patterns
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 2, args: {tp_size: 2}, simulation: {time_scale: 10}}
factors:
  nccl:
    default: {}
    tuned: {env: {NCCL_PROTO: LL}}
baseline: {nccl: default}
workloads:
  replay: {trace: files/calls.jsonl, speed: 4}
  asked: {concurrency: 1, requests: 3, prompts: "file:files/questions.txt", output_tokens: {uniform: {min: 5, max: 50}}}
measure: {launches: 1, runs: {min: 2, max: 3}, precision: 50%}
"""
CALLS = [
    {"timestamp": 900 * n, "input_length": 600 + 40 * n, "output_length": 20 + n, "hash_ids": [1, 2 + n % 3]} for n in range(8)
]  # fmt: skip


def test_a_job_with_files_asks_every_variant_the_same(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "files" / "calls.jsonl").write_text(
        "".join(f"{json.dumps(call)}\n" for call in CALLS)
    )
    (tmp_path / "files" / "questions.txt").write_text("one?\ntwo?\nthree?\n")
    command = [
        sys.executable,
        "-m",
        "fleet_controller.cli.main",
        "run",
        str(tmp_path / "job.yaml"),
        "--json",
    ]
    env = {**os.environ, "BENCHFLEET_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {row["workload"] for row in json.loads(done.stdout)["rows"]} == {"replay", "asked"}
    for workload, lengths in (("replay", list(range(20, 28))), ("asked", None)):
        raw = [
            pd.read_parquet(path).sort_values("request")
            for path in sorted((tmp_path / "state").rglob(f"{workload}-001.parquet"))
        ]
        digests = {tuple(run["prompt_digest"]) for run in raw}
        answers = {tuple(run["completion_tokens"]) for run in raw}
        assert (len(raw) >= 2, len(digests), len(answers)) == (True, 1, 1)
        assert lengths is None or answers == {tuple(lengths)}
