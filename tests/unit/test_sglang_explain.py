"""Owns the promises of what a dead server's log and exit code come to together."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_agent.engines.sglang.explain import explain, read_log
from fleet_protos.errors import ErrorKind

CRASH = (
    "[2025-03-12 11:02:11 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    "[2025-03-12 11:02:11] Received sigquit from a child process. It usually means the child failed.\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_a_cause_in_the_log_wins_over_the_exit_code(log: Path) -> None:
    log.write_text(CRASH)
    told = explain(log, -9)
    assert (told.failure_class, told.kind, told.rank) == ("oom_kv_cache", ErrorKind.SERVER_OOM, "TP2")
    assert told.cause == told.cause_line == "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert "Raise --mem-fraction-static" in told.hint


@pytest.mark.parametrize(
    ("exit_code", "failure_class", "cause"),
    [
        (-9, "killed", "dmesg"),
        (137, "killed", "dmesg"),
        (2, "argument_error", "2"),
        (-11, "scheduler_crashed", "SIGSEGV"),
        (1, "unknown", ""),
    ],
)
def test_without_a_cause_in_the_log_the_exit_code_tells(log: Path, exit_code: int, failure_class: str, cause: str) -> None:
    log.write_text("[2025-03-12 11:02:11] The server is fired up and ready to roll!\n")
    told = explain(log, exit_code)
    assert told.failure_class == failure_class
    assert cause in told.cause
    assert told.cause_line == ""


def test_a_log_that_is_not_there_is_explained_by_the_exit_code(log: Path) -> None:
    assert explain(log, -9).failure_class == "killed"


def test_of_a_log_too_long_its_launch_and_its_end_are_read(log: Path) -> None:
    start = "[2025-03-12 11:00:00 TP2] Load weight begin. avail mem=10 GB\n"
    log.write_text(start + "RuntimeError: No CUDA GPUs are available\n".rjust(200_000) + "nothing to tell\n" * 10_000 + CRASH)
    told = read_log(log, head_bytes=4096, tail_bytes=4096)
    assert (told.failure_class, told.phase) == ("oom_kv_cache", "load_weight")


@pytest.mark.parametrize("exit_code", [125, 126, 127])
def test_a_container_that_never_started_is_no_failure_of_sglang(tmp_path: Path, exit_code: int) -> None:
    log = tmp_path / "server.log"
    log.write_text("Trying to pull localhost/nothere:1...\nError: initializing source docker://localhost/nothere:1: connection refused\n")
    explanation = explain(log, exit_code)
    assert (explanation.failure_class, explanation.kind) == ("container_not_started", ErrorKind.DEPLOY_FAILED)
    assert "nothere:1: connection refused" in explanation.cause_line
    assert "pull it first" in explanation.hint
    assert explain(log, 1).failure_class != "container_not_started"
