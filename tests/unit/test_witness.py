"""Owns the promises of the logging that a server is launched with so that NCCL proves itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_agent.engines.sglang.launch.nccl_logging import uses_nccl, with_nccl_log
from fleet_protos.trial_types import Container, EngineKind, EngineSpec, Gang, TrialSpec

JOB = {"NCCL_PROTO": "LL", "PATH_OF_MINE": "x"}
SPEC = TrialSpec(engine=EngineSpec(kind=EngineKind.SGLANG, gpus=8, env=JOB))


def launched(spec: TrialSpec = SPEC, *, witness: bool = False, **changes: Any) -> dict[str, str]:
    engine = replace(spec.engine, **changes)
    return dict(
        with_nccl_log(replace(spec, engine=engine), witness=witness, folder="/t/1").engine.env
    )


def test_the_measured_launch_logs_only_what_nccl_writes_at_its_start() -> None:
    log = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV",
        "NCCL_DEBUG_FILE": "/t/1/nccl-%h-%p.log",
    }
    assert launched() == {**JOB, **log}
    assert launched(proof="witness") == {**JOB, **log}
    assert launched(gpus=1, gang=Gang(nodes=2)) == {**JOB, **log}


ALONE: list[dict[str, Any]] = [
    {"gpus": 1}, {"gpus": 0}, {"proof": "off"}, {"kind": EngineKind.SIMULATED}, {"kind": EngineKind.EXTERNAL},
]  # fmt: skip


@pytest.mark.parametrize("changes", ALONE)
def test_a_server_without_nccl_or_without_proof_has_the_jobs_variables_alone(
    changes: dict[str, Any],
) -> None:
    assert launched(**changes) == JOB


def test_a_witness_and_a_timed_proof_log_each_choice() -> None:
    assert launched(witness=True)["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,GRAPH,TUNING"
    assert launched(witness=True)["NCCL_DEBUG_FILE"] == "/t/1/nccl-witness-%h-%p.log"
    assert launched(proof="timed")["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,GRAPH,TUNING"


def test_a_jobs_own_logging_stands_except_for_the_witness() -> None:
    own = {"NCCL_DEBUG": "WARN"}
    assert launched(env=own) == launched(env=own, proof="timed") == own
    assert launched(env=own, witness=True)["NCCL_DEBUG"] == "INFO"


def test_in_a_container_the_lines_go_to_the_servers_log() -> None:
    assert "NCCL_DEBUG_FILE" not in launched(container=Container(image="sglang:1"))


def test_one_gpu_talks_to_nobody() -> None:
    assert (
        not uses_nccl(EngineSpec(gpus=1))
        and uses_nccl(EngineSpec(gpus=2))
        and uses_nccl(EngineSpec(gpus=1, gang=Gang(nodes=2)))
    )
