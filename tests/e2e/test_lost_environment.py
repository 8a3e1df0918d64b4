"""Promises about the accident that began this project: NCCL variables that are gone, and that
nobody sees for hours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

FLEETCTL = (sys.executable, "-m", "fleet_controller.cli.main")
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: {name}
model: {{path: sim/kimi}}
engine:
  kind: simulated
  gpus: 8
  args: {{tp_size: 8}}
  stop_timeout: 5s
  simulation: {{time_scale: 100, seed: 3, lost_env: [NCCL_PROTO, NCCL_ALGO]}}
factors:
  nccl:
    default: {{}}
    tuned: {{env: {{NCCL_PROTO: LL, NCCL_ALGO: Ring}}}}
baseline: {{nccl: default}}
workloads:
  single: {{concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: 200}}
measure: {{launches: 3, runs: {{min: 2, max: 2}}, warmup: 1}}
"""


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, str]:
    """The folder of a job whose servers lose their NCCL variables, and how `run --json` ended."""
    folder = tmp_path_factory.mktemp("lost")
    (folder / "job.yaml").write_text(JOB.format(name=f"lost-{uuid.uuid4().hex[:6]}"))
    done = call(folder, "run", str(folder / "job.yaml"), "--json")
    return folder, done.returncode, done.stdout, done.stderr


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "BENCHFLEET_STATE": str(folder / "state")}
    return subprocess.run(
        (*FLEETCTL, *arguments), env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_lost_nccl_variables_fail_the_trial_before_a_single_run_is_counted(
    lost: tuple[Path, int, str, str],
) -> None:
    _, code, out, err = lost
    assert code == 1, err
    rows = {(row["variant"], row["metric"]): row for row in json.loads(out)["rows"]}
    tuned, default = rows["nccl=tuned", "output_tok_s"], rows["nccl=default", "output_tok_s"]
    assert (tuned["launches"], tuned["runs"], tuned["mean"]) == (0, 0, None)
    assert (default["launches"], default["runs"]) == (3, 6)
    assert "env_not_effective" in tuned["reason"]
    assert (
        "NCCL_ALGO=Ring" in err and "NCCL_PROTO" not in err.split("failed (env_not_effective)")[0]
    )


def test_the_later_blocks_of_that_variant_are_not_launched(
    lost: tuple[Path, int, str, str],
) -> None:
    folder, _, out, _ = lost
    shown = json.loads(call(folder, "show", json.loads(out)["job"], "--json").stdout)
    ended = {
        (trial["block"], trial["variant"]): (trial["outcome"], trial["failure_class"])
        for trial in shown["trials"]
    }
    assert ended == {
        (block, variant): ("ok", "")
        if variant == "nccl=default"
        else ("failed", "env_not_effective")
        for block in (1, 2, 3)
        for variant in ("nccl=default", "nccl=tuned")
    }
    of_tuned = {
        trial["id"]: trial["block"] for trial in shown["trials"] if trial["variant"] == "nccl=tuned"
    }
    launched = {
        log.parent.parent.name
        for log in (folder / "state" / "agent" / "artifacts").glob("*/*/server.log")
    }
    assert [block for trial, block in of_tuned.items() if trial in launched] == [1]
