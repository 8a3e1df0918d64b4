"""What two jobs asked for differently is said beside their ratio."""

from __future__ import annotations

from dataclasses import replace

from fleet_controller.analysis.job_differences import job_differences
from fleet_controller.core.job import Job
from fleet_protos.trial_types import EngineSpec, Workload

SINGLE = Workload("single", concurrency=1, requests=1, output_tokens=500)
JOB = Job("a", EngineSpec(model_path="kimi", args={"tp_size": 8}), (SINGLE,))


def test_equal_jobs_and_other_settings_say_nothing() -> None:
    assert job_differences(JOB, JOB) == ()
    assert (
        job_differences(
            JOB,
            replace(
                JOB,
                name="b",
                engine=replace(JOB.engine, args={"tp_size": 4}, env={"NCCL_PROTO": "LL"}),
            ),
        )
        == ()
    )


def test_another_model_is_told() -> None:
    other = replace(JOB, engine=replace(JOB.engine, model_path="qwen"))
    assert job_differences(JOB, other) == ("the jobs have different models: kimi and qwen",)


def test_a_workload_of_one_name_that_is_another_load_is_told_with_what_differs() -> None:
    other = replace(
        JOB,
        workloads=(
            replace(SINGLE, output_tokens=200, requests=4),
            Workload("fresh", concurrency=2),
        ),
    )
    assert job_differences(JOB, other) == (
        "workload single does not have the same load in both jobs: requests 1 against 4, output_tokens 500 against 200",
    )
