"""`fleetctl plan --prune` and `init --spec-sweep` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: sweep
model: {path: /models/llama}
engine: {kind: sglang, python: python3, args: {tp_size: 2}}
factors:
  connections: # a comment
    default: {}
    many: {env: {CUDA_DEVICE_MAX_CONNECTIONS: 32}}
    ring: {env: {NCCL_ALGO: Ring}}
baseline: {connections: default}
workloads:
  single: {concurrency: 1, output_tokens: 50}
"""


def fleetctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleet_controller.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_plan_shows_what_has_no_effect_and_leaves_it_out_when_asked(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    shown = json.loads(fleetctl("plan", str(tmp_path / "job.yaml"), "--json").stdout)
    pruned = json.loads(fleetctl("plan", str(tmp_path / "job.yaml"), "--prune", "--json").stdout)
    [arm] = shown["prunable"]
    assert (arm["variant"], arm["same_as"], arm["exclude"]) == (
        "connections=many",
        "connections=default",
        {"connections": "many"},
    )
    assert (len(shown["trials"]), shown["pruned"]) == (9, [])
    assert (len(pruned["trials"]), pruned["prunable"], pruned["pruned"]) == (6, [], [arm])


def test_a_plan_says_in_words_what_prune_does(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    shown, pruned = (
        fleetctl("plan", str(tmp_path / "job.yaml")),
        fleetctl("plan", str(tmp_path / "job.yaml"), "--prune"),
    )
    assert (
        "v2 runs the same server as v1" in shown.stdout
        and "--prune leaves these variants out" in shown.stdout
    )
    assert (
        "left out variant connections=many" in pruned.stderr
        and "connections=many" not in pruned.stdout
    )
    assert (tmp_path / "job.yaml").read_text() == JOB


def test_a_sweep_becomes_a_job_that_lints_once_it_is_filled_in(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    made = fleetctl("init", "--spec-sweep", "1,0,0,0 1,3,1,4 1,3,1,8 4,7,4,16", "-o", str(job))
    assert made.returncode == 0, made.stderr
    assert "1,3,1,8: the same as 1,3,1,4, launched once" in made.stderr
    assert fleetctl("lint", str(job)).returncode == 2
    job.write_text(
        job.read_text().replace("$MODEL", "/models/a").replace("$DRAFT_MODEL", "/models/a-eagle3")
    )
    linted = fleetctl("lint", str(job), "--json")
    assert (linted.returncode, json.loads(linted.stdout)["findings"]) == (0, [])
    assert fleetctl("init", "--spec-sweep", "1,0,0,0", "-o", str(job)).returncode == 2


def test_a_wrong_entry_of_a_sweep_is_told(tmp_path: Path) -> None:
    done = fleetctl("init", "--spec-sweep", "1,3,1,4 nonsense", "--json")
    assert done.returncode == 2
    assert [point.get("verdict", "")[:6] for point in json.loads(done.stdout)["expanded"]] == [
        "",
        "error:",
    ]
