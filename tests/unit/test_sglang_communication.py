"""Owns the promises of the comparison of a job's NCCL variables with what NCCL shows of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fleet_agent.engines.sglang.proof import nccl_gates
from fleet_agent.engines.sglang.proof.nccl_gates import NcclEvidence, nccl_to_json
from fleet_knowledge.nccl.inspector_output import read_inspector
from fleet_knowledge.nccl.log.nccl_reader import NcclReader
from fleet_knowledge.nccl.nccl_conf import NcclConfFile
from fleet_protos.trial_types import Gate, GateEffect

AT = "gpu01:41:77 [0] NCCL INFO "
SET = [
    f"{AT}NCCL_PROTO set by environment to LL", f"{AT}NCCL_BUFFSIZE set by environment to 16777216.",
    f"{AT}NCCL_NTHREADS set by environment to 512.",
]  # fmt: skip
DONE = [
    "NCCL version 2.27.3+cuda12.9",
    f"{AT}ncclCommInitRank comm 0x5a rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init COMPLETE",
]
VOID, FLAG = GateEffect.VOID_TRIAL, GateEffect.FLAG


def shown(*lines: str, **changes: Any) -> NcclEvidence:
    reader = NcclReader()
    for line in lines:
        reader.feed(line)
    return NcclEvidence(**{"facts": reader.facts(), "ranks": 8, **changes})


def gates(env: Mapping[str, str], found: NcclEvidence, **info: Any) -> tuple[Gate, ...]:
    return nccl_gates.check_nccl(env, found, {"version": "0.5.23", "tp_size": 8, **info})


def short(found: tuple[Gate, ...]) -> list[tuple[str, GateEffect]]:
    return [(gate.code, gate.effect) for gate in found]


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "16777216", "OTHER": "x"}, {"NCCL_BUFFSIZE": "0x1000000"}, {"NCCL_DEBUG": "WARN"}, {},
    ],
)  # fmt: skip
def test_variables_that_nccl_names_with_the_jobs_values_are_proved(env: dict[str, str]) -> None:
    assert gates(env, shown(*SET, *DONE)) == ()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"NCCL_PROTO": "Simple"}, "NCCL_PROTO=Simple did not reach NCCL: NCCL's log says LL"),
        (
            {"NCCL_ALGO": "Ring"},
            "NCCL_ALGO=Ring did not reach NCCL: NCCL reads and names the variable at every start",
        ),
    ],
)
def test_a_variable_that_did_not_arrive_voids_the_trial(env: dict[str, str], told: str) -> None:
    (gate,) = gates(env, shown(*SET, *DONE))
    assert (gate.code, gate.effect) == ("env_not_effective", VOID)
    assert gate.message.startswith(told)


def test_one_rank_with_another_value_voids_the_trial() -> None:
    other = "gpu01:42:78 [1] NCCL INFO NCCL_PROTO set by environment to Simple"
    assert short(gates({"NCCL_PROTO": "LL"}, shown(*SET, other, *DONE))) == [
        ("env_not_effective", VOID)
    ]


def test_a_variable_that_nccl_reads_only_when_needed_is_unproved_and_not_lost() -> None:
    (gate,) = gates({"NCCL_IB_HCA": "mlx5_0", "NCCL_PROTOO": "LL"}, shown(*SET, *DONE))
    assert (gate.code, gate.effect) == ("env_unproved", FLAG)
    assert "NCCL_IB_HCA=mlx5_0 (NCCL did not read it: it does so only when" in gate.message
    assert "NCCL_PROTOO=LL (the log does not name the variable" in gate.message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "no line from NCCL was found"), ({"proof": "off"}, "engine.proof is off"),
        ({"ranks": 1}, "one GPU: NCCL has nothing to set up"),
    ],
)  # fmt: skip
def test_without_a_line_of_nccls_nothing_is_proved_and_nothing_is_void(
    changes: dict[str, Any], why: str
) -> None:
    (gate,) = gates({"NCCL_ALGO": "Ring"}, shown("Load weight end.", **changes))
    assert (gate.code, gate.effect) == ("env_unproved", FLAG)
    assert why in gate.message


@pytest.mark.parametrize("subsystems", ["INIT,COLL", "^ENV"])
def test_a_log_that_hides_the_environment_proves_nothing(subsystems: str) -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_DEBUG_SUBSYS": subsystems}
    assert short(gates(env, shown(*DONE))) == [("env_unproved", FLAG)]
    assert short(gates({**env, "NCCL_DEBUG_SUBSYS": "^COLL"}, shown(*DONE))) == [
        ("env_not_effective", VOID)
    ]


def test_a_log_that_names_all_that_it_sees_proves_that_a_variable_is_lost() -> None:
    assert short(gates({"NCCL_IB_HCA": "mlx5_0"}, shown(*DONE, names_all=True))) == [
        ("env_not_effective", VOID)
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NCCL_ALGO=Tree", "/etc/nccl.conf sets NCCL_ALGO=Tree"), ("NCCL_PROTO=Simple", "/etc/nccl.conf sets NCCL_PROTO=Simple, but LL takes effect"),
    ],
)  # fmt: skip
def test_a_configuration_file_of_the_host_is_told(line: str, told: str) -> None:
    (gate,) = gates(
        {"NCCL_PROTO": "LL"},
        shown(*SET, *DONE, configurations=(NcclConfFile("/etc/nccl.conf", line),)),
    )
    assert (gate.code, gate.effect) == ("nccl_conf_overrides", FLAG)
    assert gate.message.endswith(told)
    assert (
        gates(
            {"NCCL_PROTO": "LL"},
            shown(*SET, *DONE, configurations=(NcclConfFile("/etc/nccl.conf", "NCCL_PROTO=LL"),)),
        )
        == ()
    )


def test_another_library_than_the_installed_one_is_told() -> None:
    library = ("/opt/nccl/libnccl.so.2",)
    (gate,) = gates({}, shown(*DONE, installed="2.26.2", libraries=library))
    assert (gate.code, gate.effect) == ("nccl_other_library", FLAG)
    assert (
        gate.message
        == "NCCL 2.27.3 is loaded from /opt/nccl/libnccl.so.2, but the package in the server's Python environment is 2.26.2"
    )
    assert gates({}, shown(*DONE, installed="2.27.3", libraries=library)) == ()
    assert short(gates({}, shown(*DONE, libraries=(*library, "/env/libnccl.so.2")))) == [
        ("nccl_other_library", FLAG)
    ]


def test_a_witness_in_which_no_all_reduce_reached_nccl_tells_that_its_settings_cannot_matter() -> (
    None
):
    gathers = f"{AT}AllGather: 262144 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..7}}"
    reduces = f"{AT}AllReduce: 86016 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..7}}"
    env = {"NCCL_PROTO": "LL"}
    (gate,) = gates(env, shown(*SET, *DONE, gathers, witness=True))
    assert (gate.code, gate.effect) == ("nccl_bypassed", FLAG)
    assert gate.message.startswith(
        "NCCL carried AllGather, but no all-reduce: NCCL_PROTO cannot affect"
    )
    assert gates(env, shown(*SET, *DONE, gathers, reduces, witness=True)) == ()
    assert gates(env, shown(*SET, *DONE, gathers)) == (), (
        "a launch without its whole log shows nothing of the kind"
    )
    assert gates({}, shown(*SET, *DONE, gathers, witness=True)) == ()


def test_the_record_holds_what_nccl_showed_and_nothing_where_it_showed_nothing() -> None:
    assert nccl_to_json(shown("no such line")) == {}
    labels = (
        'gpu="GPU0",nranks="8",collective="AllReduce",message_size="1-2MB",algo_proto="Ring_ll"'
    )
    rows = read_inspector(f"nccl_bus_bandwidth_gbs{{{labels}}} 120.0\n")
    conf = (NcclConfFile("/etc/nccl.conf", "NCCL_ALGO=Tree"),)
    told = nccl_to_json(
        shown(*SET, *DONE, libraries=("/x/libnccl.so.2",), configurations=conf, inspected=rows)
    )
    assert (told["version"], told["settings"]["NCCL_PROTO"]) == ("2.27.3", ["LL"])
    assert (told["libraries"], told["configuration"]["NCCL_ALGO"]["value"]) == (
        ["/x/libnccl.so.2"],
        "Tree",
    )
    assert (told["inspected"][0]["algo_proto"], told["inspected"][0]["busbw_gb_s"]) == (
        "Ring_ll",
        120.0,
    )


def test_a_variable_that_sglang_writes_itself_is_said_to_be() -> None:
    seen = f"{AT}NCCL_CUMEM_ENABLE set by environment to 0."
    (gate,) = gates({"NCCL_CUMEM_ENABLE": "1"}, shown(seen, *DONE), version="0.5.3")
    assert gate.message.endswith("(SGLang itself sets it to 0)")
    assert "SGLang" not in gates({"NCCL_CUMEM_ENABLE": "1"}, shown(seen, *DONE))[0].message
