"""The table of NCCL's variables: legal values by version, defaults, names, and that the guide's table is the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_knowledge.nccl import variable_rules
from fleet_knowledge.nccl.sglang_overrides import overrides_of
from fleet_knowledge.nccl.variable_rules import of_server, of_variable
from fleet_knowledge.nccl.variables.algo_proto_grammar import ALGORITHMS, chosen, without_algorithm
from fleet_knowledge.nccl.variables.guide_table import table
from fleet_knowledge.nccl.variables.known_variables import (
    VARIABLES,
    find,
    is_known,
    is_legal,
    nearest,
    needs_output_check,
    whose,
)
from fleet_knowledge.nccl.variables.value_types import Outcome, read_number
from fleet_knowledge.nccl.variables.variable import span
from fleet_knowledge.release import Between, Release
from fleet_knowledge.server_configuration import Configuration

GUIDE = Path(__file__).parents[2] / "docs" / "nccl.md"
ILLEGAL = (
    ("NCCL_ALGO", "Rign", "", Outcome.REFUSED),
    ("NCCL_ALGO", "Rign", "2.21.5", Outcome.IGNORED),  # not refused before 2.24: Ring and Tree are left
    ("NCCL_PROTO", "LL256", "2.21.5", Outcome.REFUSED),  # no protocol at all is left
    ("NCCL_ALGO", "ring;tree", "2.27.3", Outcome.REFUSED),
    ("NCCL_ALGO", "allreduce:tree", "2.21.5", Outcome.MISREAD),
    ("NCCL_ALGO", "sum:tree", "2.27.3", Outcome.REFUSED),
    ("NCCL_ALGO", "ring, tree", "2.27.3", Outcome.REFUSED),
    ("NCCL_ALGO", "PAT", "2.21.5", Outcome.IGNORED),
    ("NCCL_ALGO", "Collnet", "2.27.3", Outcome.REFUSED),
    ("NCCL_P2P_LEVEL", "sys", "", Outcome.IGNORED),
    ("NCCL_P2P_LEVEL", "NVLINK", "", Outcome.IGNORED),
    ("NCCL_P2P_LEVEL", "4", "", Outcome.DISCOURAGED),
    ("NCCL_NTHREADS", "100", "", Outcome.ADJUSTED),
    ("NCCL_MAX_CTAS", "48", "2.24.3", Outcome.ADJUSTED),
    ("NCCL_MAX_CTAS", "65", "", Outcome.ADJUSTED),
    ("NCCL_MIN_CTAS", "0", "", Outcome.ADJUSTED),
    ("NCCL_BUFFSIZE", "16M", "", Outcome.MISREAD),
    ("NCCL_IB_DISABLE", "true", "", Outcome.MISREAD),
    ("NCCL_IB_HCA", "mlx5_0 ,mlx5_1", "", Outcome.MISREAD),
    ("NCCL_SOCKET_IFNAME", "eth0:1", "", Outcome.MISREAD),
    ("NCCL_SOCKET_IFNAME", "^", "", Outcome.IGNORED),
    ("NCCL_CONF_FILE", "~/nccl.conf", "", Outcome.IGNORED),
    ("NCCL_DEBUG", "VERBOSE", "", Outcome.IGNORED),
    ("NCCL_DEBUG_SUBSYS", "INIT,TUNE", "", Outcome.IGNORED),
    ("NCCL_SOCKET_FAMILY", "IPv4", "", Outcome.IGNORED),
)
LEGAL = (
    ("NCCL_ALGO", "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", "2.24.3"),
    ("NCCL_ALGO", "allreduce:^tree", "2.30.7"),
    ("NCCL_ALGO", "^nvls", "2.18.6"),
    ("NCCL_ALGO", "PAT", "2.23.4"),
    ("NCCL_PROTO", "simple,LL", ""),
    ("NCCL_P2P_LEVEL", "NVL", ""),
    ("NCCL_NET_GDR_LEVEL", "PHB", ""),
    ("NCCL_MAX_CTAS", "48", "2.25.1"),
    ("NCCL_BUFFSIZE", "0x400000", ""),
    ("NCCL_IB_HCA", "^=mlx5_0:1,mlx5_1", ""),
    ("NCCL_SOCKET_IFNAME", "=eth0,eth1", ""),
    ("NCCL_DEBUG", "info", ""),
    ("NCCL_DEBUG_SUBSYS", "^INIT,TUNING", ""),
    ("NCCL_IB_GID_INDEX", "-1", ""),
    ("NCCL_CTA_POLICY", "DEFAULT|ZERO", ""),
    ("NCCL_CTA_POLICY", "1", ""),
    ("NCCL_SOMETHING_NEW", "whatever", ""),
)


@pytest.mark.parametrize(("name", "value", "version", "outcome"), ILLEGAL)
def test_an_illegal_value_is_told_with_what_nccl_does(name: str, value: str, version: str, outcome: Outcome) -> None:
    row = find(name)
    fault = row.fault(value, Release.read(version)) if row else None
    assert fault is not None and fault.outcome is outcome and fault.problem


@pytest.mark.parametrize(("name", "value", "version"), LEGAL)
def test_a_legal_value_is_left_alone(name: str, value: str, version: str) -> None:
    assert is_legal(name, value, Release.read(version))


def test_a_value_that_only_some_versions_take_names_them() -> None:
    row = find("NCCL_MAX_CTAS")
    fault = row.fault("48", None) if row else None
    assert fault is not None and span(fault.versions) == "before 2.25"


def test_a_number_is_read_as_c_reads_it() -> None:
    assert [read_number(text) for text in ("0x10", "010", " -3", "16M", "", "x")] == [16, 8, -3, 16, None, None]


@pytest.mark.parametrize(
    ("name", "asked", "logged", "same"),
    [
        ("NCCL_BUFFSIZE", "0x400000", "4194304", True),
        ("NCCL_BUFFSIZE", "16M", "16777216", False),
        ("NCCL_P2P_LEVEL", "4", "SYS", True),
        ("NCCL_P2P_LEVEL", "9", "SYS", True),
        ("NCCL_P2P_LEVEL", "1", "PXB", False),
        ("NCCL_ALGO", "Ring", "ring", True),
        ("NCCL_TUNER_PLUGIN", "fast", "libnccl-tuner-fast.so", True),
        ("NCCL_LAUNCH_MODE", "parallel", "PARALLEL", True),
        ("NCCL_SOCKET_IFNAME", "eth0", "eth1", False),
    ],
)
def test_a_value_is_compared_by_meaning(name: str, asked: str, logged: str, same: bool) -> None:
    row = find(name)
    assert row is not None and row.values.same(asked, logged) is same


def test_a_default_holds_in_its_versions_only() -> None:
    row = find("NCCL_IB_TIMEOUT")
    assert row is not None
    assert row.equals_default("20", Release.read("2.27.3")) == Between("2.23")
    assert row.equals_default("20", Release.read("2.20.5")) is None
    assert row.equals_default("18", Release.read("2.20.5")) is not None


def test_what_sglang_sets_itself_is_the_default_of_a_server() -> None:
    assert variable_rules.changes_nothing("NCCL_NVLS_ENABLE", "0") != ""
    assert variable_rules.changes_nothing("NCCL_NVLS_ENABLE", "2") == ""
    assert variable_rules.changes_nothing("NCCL_NTHREADS", "512") != ""


def test_an_override_of_sglang_needs_its_argument_and_version() -> None:
    forced = list(overrides_of("NCCL_CUMEM_ENABLE", {}, Release.read("0.5.3")))
    kept = list(overrides_of("NCCL_CUMEM_ENABLE", {}, Release.read("0.5.9")))
    asked = list(overrides_of("NCCL_ALGO", {"enable_deterministic_inference": True, "tp_size": 2}, Release.read("0.5.9")))
    assert [row.always for row in forced] == [True, False]
    assert [row.always for row in kept] == [False]
    assert [(row.value, row.always) for row in asked] == [("allreduce:tree", True)]


def test_an_algorithm_without_a_way_back_to_ring_leaves_collectives_out() -> None:
    assert without_algorithm("Tree") == ("AllGather", "ReduceScatter", "Broadcast", "Reduce")
    assert without_algorithm("allreduce:tree") == ()
    assert without_algorithm("nvls,ring;allreduce:pat") == ("AllReduce",)


@pytest.mark.parametrize(("value", "hint"), [("NVLS", "allreduce:nvls,ring"), ("NVLSTree", "allreduce:nvlstree,ring")])
def test_an_algorithm_that_cannot_broadcast_is_told_with_a_second_choice(value: str, hint: str) -> None:
    (told,) = of_variable("NCCL_ALGO", value)
    assert (told.severity, told.code) == ("warning", "nccl_algorithm_missing") and "Broadcast" in told.message and hint in told.hint
    assert not list(of_variable("NCCL_ALGO", f"{value},Ring"))


def test_variables_of_the_network_are_in_vain_on_one_host() -> None:
    env = {"NCCL_IB_HCA": "mlx5_0", "NCCL_NET_GDR_LEVEL": "SYS", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_PROTO": "LL"}
    (told,) = of_server(Configuration({"tp_size": 8}, env, gpus=8))
    assert (told.severity, told.code) == ("info", "nccl_network_unused")
    assert "NCCL_IB_HCA, NCCL_NET_GDR_LEVEL" in told.message and "SOCKET_IFNAME" not in told.message
    assert not list(of_server(Configuration({"tp_size": 16}, env, gpus=8, nodes=2)))
    assert not list(of_server(Configuration({"tp_size": 8}, {**env, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, gpus=8)))


def test_a_list_chooses_for_the_collective_it_names() -> None:
    assert chosen("ring;allreduce:^tree", "AllReduce", ALGORITHMS) == {word.lower() for word in ALGORITHMS} - {"tree"}
    assert chosen("ring;allreduce:^tree", "Broadcast", ALGORITHMS) == {"ring"}


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("NCCL_PROTO", "LL,LL128,Simple", True),
        ("NCCL_PROTO", "allreduce:ll128", True),
        ("NCCL_PROTO", "^LL128", False),
        ("NCCL_PROTO", "^LL", False),
        ("NCCL_PROTO", "LL", False),
        ("NCCL_ALGO", "Ring", False),
        ("RCCL_LL128_FORCE_ENABLE", "1", True),
    ],
)
def test_only_a_forced_ll128_needs_the_output_check(name: str, value: str, needed: bool) -> None:
    assert needs_output_check(name, value) is needed


def test_names_are_known_by_their_owner_or_told_with_the_nearest() -> None:
    assert is_known("NCCL_SYM_CTAS") and is_known("NCCL_INSPECTOR_ENABLE")
    assert whose("NCCL_ASYNC_ERROR_HANDLING").startswith("PyTorch")
    assert not is_known("NCCL_P2P_LEVELS") and nearest("NCCL_P2P_LEVELS") == "NCCL_P2P_LEVEL"
    assert nearest("NCCL_XYZZY_QWERTY") == ""


def test_every_row_says_when_it_is_read() -> None:
    silent = [
        row.name for row in VARIABLES.values() if not row.always_read and not row.read_when and not row.never_logged and not row.exists.last
    ]
    assert silent == []
    assert [row.name for row in VARIABLES.values() if row.always_read and row.never_logged] == []


def test_every_default_is_legal() -> None:
    wrong = [(row.name, value) for row in VARIABLES.values() for _, value in row.default_in(None) if row.fault(value, None)]
    assert wrong == []


def test_the_guide_shows_the_table() -> None:
    assert table() in GUIDE.read_text()


@given(st.sampled_from(sorted(VARIABLES)), st.text(max_size=30), st.sampled_from(("", "2.18.6", "2.23.4", "2.30.7")))
def test_no_value_makes_a_row_raise(name: str, value: str, version: str) -> None:
    row, release = VARIABLES[name], Release.read(version)
    row.fault(value, release)
    row.equals_default(value, release)
    assert row.values.same(value, value)
    list(variable_rules.of_variable(name, value, release))
