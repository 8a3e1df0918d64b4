"""The front door: examples/demo.yaml, through the real program, gives the published story's ratios
and says that it is simulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NONE, EAGLE = "nccl={},speculation=none", "nccl={},speculation=eagle3-5"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict:
    argv = [
        sys.executable,
        "-m",
        "fleet_controller.cli.main",
        "run",
        "examples/demo.yaml",
        "--json",
    ]
    env = {**os.environ, "BENCHFLEET_STATE": str(tmp_path_factory.mktemp("demo"))}
    done = subprocess.run(
        argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rate(demo: dict, variant: str) -> float:
    (row,) = [
        row for row in demo["rows"] if row["variant"] == variant and row["metric"] == "output_tok_s"
    ]
    return row["mean"]


def test_tuned_against_default_nccl_is_near_the_published_ratio(demo: dict) -> None:
    assert rate(demo, NONE.format("tuned")) / rate(demo, NONE.format("default")) == pytest.approx(
        88.8 / 62.9, rel=0.04
    )


def test_eagle3_with_5_steps_is_near_its_own_published_ratio(demo: dict) -> None:
    assert rate(demo, EAGLE.format("tuned")) / rate(demo, EAGLE.format("default")) == pytest.approx(
        86.7 / 71.3, rel=0.04
    )


def test_everything_says_simulated_and_the_time_scale(demo: dict) -> None:
    assert (demo["engine"], demo["time_scale"]) == ("simulated", 20)
    assert any("simulated ×20" in note for note in demo["notes"])


def test_six_variants_have_three_launches_each_and_one_of_them_is_the_baseline(demo: dict) -> None:
    rows = [row for row in demo["rows"] if row["metric"] == "output_tok_s"]
    assert len(rows) == 6
    assert {row["launches"] for row in rows} == {3}
    assert demo["baseline"] == NONE.format("default")


def test_tuned_nccl_is_resolved_as_faster(demo: dict) -> None:
    (row,) = [
        row
        for row in demo["rows"]
        if row["variant"] == NONE.format("tuned") and row["metric"] == "output_tok_s"
    ]
    assert row["verdict"] == "FASTER"
    low, high = row["ratio_interval"]
    assert 1 < low < 88.8 / 62.9 * 1.04
    assert high > low
