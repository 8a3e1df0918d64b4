"""Owns the promises of what a dead server's exit code says, and of a container that never started."""

from __future__ import annotations

import pytest

from fleet_agent.engines.sglang.exit_causes import explain_runtime_exit, explain_silent_exit
from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_protos.errors import ErrorKind


@pytest.mark.parametrize(
    ("exit_code", "failure_class", "cause"),
    [
        (-9, "killed", "dmesg"),
        (137, "killed", "dmesg"),
        (2, "argument_error", "argument"),
        (-11, "scheduler_crashed", "SIGSEGV"),
        (1, "unknown", "no cause"),
    ],
)
def test_without_a_cause_in_the_log_the_exit_code_tells(
    exit_code: int, failure_class: str, cause: str
) -> None:
    told, why = explain_silent_exit(exit_code)
    assert told == failure_class
    assert cause in why
    assert told == "unknown" or told in FAILURES


@pytest.mark.parametrize("exit_code", [125, 126, 127])
def test_a_container_that_never_started_is_no_failure_of_sglang(exit_code: int) -> None:
    reader = LogReader()
    reader.feed(
        b"Trying to pull localhost/nothere:1...\nError: initializing source docker://localhost/nothere:1: connection refused\n"
    )
    read = reader.finish()
    told = explain_runtime_exit(read, exit_code)
    assert (told.failure_class, told.kind) == ("container_not_started", ErrorKind.DEPLOY_FAILED)
    assert "nothere:1: connection refused" in told.cause_line
    assert "pull it first" in told.hint
    assert explain_runtime_exit(read, 1).failure_class != "container_not_started"
