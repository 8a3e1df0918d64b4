"""Owns the promise of the example job: from the file to the verdict on real SGLang servers, through
the real program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest

from tests.real_sglang.environment import cache, ensure

pytestmark = pytest.mark.real_sglang

EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang-cpu.yaml"
RUN_LIMIT_S = 1500.0
LAUNCHES, RUNS, REQUESTS, TOKENS = 2, 3, 2, 48


@dataclass(frozen=True, slots=True)
class Done:
    """The job, over."""

    state: Path
    exit_code: int
    verdict: dict[str, Any]
    progress: str

    def row(self, variant: str) -> dict[str, Any]:
        (found,) = (
            row
            for row in self.verdict["rows"]
            if row["variant"] == variant and row["metric"] == "output_tok_s"
        )
        row: dict[str, Any] = found
        return row


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    ensure()
    folder = tmp_path_factory.mktemp("job")
    job, state = folder / EXAMPLE.name, folder / "state"
    job.write_text(
        EXAMPLE.read_text(encoding="utf-8").replace("~/.cache/benchfleet", str(cache())),
        encoding="utf-8",
    )
    argv = (sys.executable, "-m", "fleet_controller.cli.main", "run", str(job), "--json")
    env = {**os.environ, "BENCHFLEET_STATE": str(state)}
    ran = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, timeout=RUN_LIMIT_S
    )
    assert ran.stdout, ran.stderr
    print(f"\n{ran.stderr}")
    return Done(state, ran.returncode, json.loads(ran.stdout), ran.stderr)


def belonging_to(state: Path) -> list[list[str]]:
    """Command lines of the processes that name this state folder, in words or in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            known = " ".join((*process.cmdline(), *process.environ().values()))
        except psutil.Error:
            continue
        if process.pid != os.getpid() and str(state) in known:
            found.append(process.cmdline())
    return found


def test_the_job_ends_well_and_leaves_no_process(done: Done) -> None:
    assert done.exit_code == 0, done.progress
    assert done.verdict["engine"] == "sglang"
    assert belonging_to(done.state) == []


@pytest.mark.parametrize("variant", ["speculation=none", "speculation=standalone"])
def test_every_launch_and_run_counts(done: Done, variant: str) -> None:
    row = done.row(variant)
    assert (row["launches"], row["runs"]) == (LAUNCHES, LAUNCHES * RUNS), row["gates"]
    assert row["mean"] > 0


def test_the_speculating_variant_has_its_verdict_and_accept_length(done: Done) -> None:
    row = done.row("speculation=standalone")
    assert row["accept_length"] > 1.05, "the draft is the target itself"
    assert row["verdict"] in ("FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE")
    assert done.row("speculation=none")["accept_length"] is None


def test_raw_data_holds_every_request_with_the_tokens_that_were_asked(done: Done) -> None:
    artifacts = done.state / "agent" / "artifacts"
    files = sorted(artifacts.rglob("single-*.parquet"))
    assert len(files) == 2 * LAUNCHES * RUNS
    for file in files:
        rows = pyarrow.parquet.read_table(file).to_pylist()
        assert [row["completion_tokens"] for row in rows] == [TOKENS] * REQUESTS
        assert {(row["finish_reason"], row["error_kind"]) for row in rows} == {("length", None)}


def test_the_controller_holds_the_raw_data_byte_for_byte(done: Done) -> None:
    kept, copies = done.state / "agent" / "artifacts", done.state / "controller" / "artifacts"
    files = sorted(kept.rglob("single-*.parquet"))
    assert [(copies / file.relative_to(kept)).read_bytes() for file in files] == [
        file.read_bytes() for file in files
    ]
