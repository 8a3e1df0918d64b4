"""Who does the all-reduce of a decode step: NCCL, or something that SGLang tries before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fleet_knowledge.nccl.allreduce_path import AllReduceSetup, NcclUse, find_all_reduce_path
from fleet_knowledge.nccl.variable_rules import find_bypassed_variables
from fleet_knowledge.server_configuration import ServerConfiguration

REACHES, BYPASSED, UNKNOWN = NcclUse.REACHES, NcclUse.BYPASSED, NcclUse.UNKNOWN
CASES: tuple[tuple[Mapping[str, Any], str, NcclUse, str], ...] = (
    ({"tp_size": 8}, "nvlink", BYPASSED, "custom all-reduce"),
    ({"tp_size": 8}, "pcie", REACHES, ""),
    ({"tp_size": 8}, "unknown", UNKNOWN, "custom all-reduce"),
    ({"tp_size": 2}, "pcie", BYPASSED, "custom all-reduce"),
    ({"tp_size": 2}, "unknown", UNKNOWN, "custom all-reduce"),
    ({"tp_size": 8, "disable_custom_all_reduce": True}, "nvlink", REACHES, ""),
    ({"tp_size": 8, "enable_deterministic_inference": True}, "nvlink", REACHES, ""),
    ({"tp_size": 8, "nnodes": 2}, "nvlink", REACHES, ""),
    ({"tp_size": 16}, "nvlink", REACHES, ""),
    ({"tp_size": 3}, "nvlink", UNKNOWN, "custom all-reduce"),
    ({"tp_size": 1}, "nvlink", BYPASSED, "no all-reduce"),
    ({}, "unknown", BYPASSED, "no all-reduce"),
    ({"tp_size": 1, "pp_size": 2}, "nvlink", UNKNOWN, ""),
    ({"tp_size": 8, "enable_dp_attention": True}, "nvlink", UNKNOWN, ""),
    ({"tp_size": 8, "enable_symm_mem": True}, "nvlink", UNKNOWN, "symmetric memory"),
    (
        {"tp_size": 8, "enable_mscclpp": True, "disable_custom_all_reduce": True},
        "nvlink",
        UNKNOWN,
        "mscclpp",
    ),
    (
        {"tp_size": 8, "enable_torch_symm_mem": True, "disable_custom_all_reduce": True},
        "nvlink",
        UNKNOWN,
        "torch symmetric memory",
    ),
    (
        {"tp_size": 4, "enable_flashinfer_allreduce_fusion": True},
        "pcie",
        UNKNOWN,
        "FlashInfer all-reduce fusion",
    ),
    ({"tp_size": "many"}, "nvlink", UNKNOWN, ""),
)


@pytest.mark.parametrize(("args", "topology", "answer", "by"), CASES)
def test_the_order_of_attempts_decides(
    args: Mapping[str, Any], topology: str, answer: NcclUse, by: str
) -> None:
    path = find_all_reduce_path(AllReduceSetup(args, topology=topology))
    assert (path.answer, path.performed_by) == (answer, by)
    assert path.reason


def test_a_verify_of_six_tokens_is_far_below_the_limit() -> None:
    path = find_all_reduce_path(
        AllReduceSetup({"tp_size": 8}, topology="nvlink", hidden_size=7168, step_tokens=6)
    )
    assert path.answer is BYPASSED
    assert "84 KiB per step" in path.reason and "chunks of 585 tokens" in path.reason


def test_a_step_of_many_requests_may_be_too_large_for_it() -> None:
    path = find_all_reduce_path(
        AllReduceSetup({"tp_size": 8}, topology="nvlink", hidden_size=7168, step_tokens=1024)
    )
    assert (path.answer, path.performed_by) == (UNKNOWN, "custom all-reduce")


def test_a_variable_switches_flashinfers_kernels_on_without_nvlink() -> None:
    path = find_all_reduce_path(
        AllReduceSetup({"tp_size": 4}, {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}, "pcie")
    )
    assert (path.answer, path.performed_by) == (UNKNOWN, "FlashInfer PCIe all-reduce")


def test_only_variables_that_could_matter_are_passed_by() -> None:
    asked = ServerConfiguration(
        args={"tp_size": 8},
        env={"NCCL_PROTO": "LL", "NCCL_DEBUG": "INFO", "SGLANG_X": "1"},
        concurrency=1,
    )
    passed = find_bypassed_variables(asked, "nvlink")
    assert passed is not None and passed.variables == ("NCCL_PROTO",)
    assert find_bypassed_variables(asked, "pcie") is None
    assert (
        find_bypassed_variables(
            ServerConfiguration(args={"tp_size": 8}, env={"NCCL_DEBUG": "INFO"}), "nvlink"
        )
        is None
    )
    assert (
        find_bypassed_variables(
            ServerConfiguration(args={"tp_size": 8, "device": "cpu"}, env={"NCCL_PROTO": "LL"}),
            "nvlink",
        )
        is None
    )
