"""The table of NCCL's variables: legal values by version, defaults, names, and that the guide's
table is the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_knowledge.nccl import variable_rules
from fleet_knowledge.nccl.variable_rules import apply_nccl_server_rules, apply_nccl_variable_rules
from fleet_knowledge.nccl.variables.algo_proto_grammar import (
    ALGORITHMS,
    allowed_words,
    collectives_without_algorithm,
)
from fleet_knowledge.nccl.variables.guide_table import render_variable_table
from fleet_knowledge.nccl.variables.known_variables import (
    VARIABLES,
    find_variable,
    foreign_owner,
    is_known,
    is_legal,
    nearest_variable,
    needs_output_check,
)
from fleet_knowledge.nccl.variables.value_types import InvalidValueEffect, read_number
from fleet_knowledge.nccl.variables.variable import describe_versions
from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.environment_rules import find_overwrites

GUIDE = Path(__file__).parents[2] / "docs" / "nccl.md"
ILLEGAL = (
    ("NCCL_ALGO", "Rign", "", InvalidValueEffect.REFUSED),
    (
        "NCCL_ALGO",
        "Rign",
        "2.21.5",
        InvalidValueEffect.IGNORED,
    ),  # not refused before 2.24: Ring and Tree are left
    ("NCCL_PROTO", "LL256", "2.21.5", InvalidValueEffect.REFUSED),  # no protocol at all is left
    ("NCCL_ALGO", "ring;tree", "2.27.3", InvalidValueEffect.REFUSED),
    ("NCCL_ALGO", "allreduce:tree", "2.21.5", InvalidValueEffect.MISREAD),
    ("NCCL_ALGO", "sum:tree", "2.27.3", InvalidValueEffect.REFUSED),
    ("NCCL_ALGO", "ring, tree", "2.27.3", InvalidValueEffect.REFUSED),
    ("NCCL_ALGO", "PAT", "2.21.5", InvalidValueEffect.IGNORED),
    ("NCCL_ALGO", "Collnet", "2.27.3", InvalidValueEffect.REFUSED),
    ("NCCL_P2P_LEVEL", "sys", "", InvalidValueEffect.IGNORED),
    ("NCCL_P2P_LEVEL", "NVLINK", "", InvalidValueEffect.IGNORED),
    ("NCCL_P2P_LEVEL", "4", "", InvalidValueEffect.DISCOURAGED),
    ("NCCL_NTHREADS", "100", "", InvalidValueEffect.ADJUSTED),
    ("NCCL_MAX_CTAS", "48", "2.24.3", InvalidValueEffect.ADJUSTED),
    ("NCCL_MAX_CTAS", "65", "", InvalidValueEffect.ADJUSTED),
    ("NCCL_MIN_CTAS", "0", "", InvalidValueEffect.ADJUSTED),
    ("NCCL_BUFFSIZE", "16M", "", InvalidValueEffect.MISREAD),
    ("NCCL_IB_DISABLE", "true", "", InvalidValueEffect.MISREAD),
    ("NCCL_IB_HCA", "mlx5_0 ,mlx5_1", "", InvalidValueEffect.MISREAD),
    ("NCCL_SOCKET_IFNAME", "eth0:1", "", InvalidValueEffect.MISREAD),
    ("NCCL_SOCKET_IFNAME", "^", "", InvalidValueEffect.IGNORED),
    ("NCCL_CONF_FILE", "~/nccl.conf", "", InvalidValueEffect.IGNORED),
    ("NCCL_DEBUG", "VERBOSE", "", InvalidValueEffect.IGNORED),
    ("NCCL_DEBUG_SUBSYS", "INIT,TUNE", "", InvalidValueEffect.IGNORED),
    ("NCCL_SOCKET_FAMILY", "IPv4", "", InvalidValueEffect.IGNORED),
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
def test_an_illegal_value_is_told_with_what_nccl_does(
    name: str, value: str, version: str, outcome: InvalidValueEffect
) -> None:
    row = find_variable(name)
    fault = row.fault(value, Release.parse(version)) if row else None
    assert fault is not None and fault.outcome is outcome and fault.problem


@pytest.mark.parametrize(("name", "value", "version"), LEGAL)
def test_a_legal_value_is_left_alone(name: str, value: str, version: str) -> None:
    assert is_legal(name, value, Release.parse(version))


def test_a_value_that_only_some_versions_take_names_them() -> None:
    row = find_variable("NCCL_MAX_CTAS")
    fault = row.fault("48", None) if row else None
    assert fault is not None and describe_versions(fault.versions) == "before 2.25"


def test_a_number_is_read_as_c_reads_it() -> None:
    assert [read_number(text) for text in ("0x10", "010", " -3", "16M", "", "x")] == [
        16,
        8,
        -3,
        16,
        None,
        None,
    ]


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
    row = find_variable(name)
    assert row is not None and row.values.means_same(asked, logged) is same


def test_a_default_holds_in_its_versions_only() -> None:
    row = find_variable("NCCL_IB_TIMEOUT")
    assert row is not None
    assert row.equals_default("20", Release.parse("2.27.3")) == VersionRange("2.23")
    assert row.equals_default("20", Release.parse("2.20.5")) is None
    assert row.equals_default("18", Release.parse("2.20.5")) is not None


def test_what_sglang_sets_itself_is_the_default_of_a_server() -> None:
    assert variable_rules.no_effect_reason("NCCL_NVLS_ENABLE", "0") != ""
    assert variable_rules.no_effect_reason("NCCL_NVLS_ENABLE", "2") == ""
    assert variable_rules.no_effect_reason("NCCL_NTHREADS", "512") != ""


def test_an_override_of_sglang_needs_its_argument_and_version() -> None:
    cumem = {"NCCL_CUMEM_ENABLE": "1"}
    forced = list(find_overwrites(configuration({}, cumem, "0.5.3")))
    kept = list(find_overwrites(configuration({}, cumem, "0.5.9")))
    deterministic = {"enable_deterministic_inference": True, "tp_size": 2}
    asked = list(find_overwrites(configuration(deterministic, {"NCCL_ALGO": "ring"}, "0.5.9")))
    assert [(found.change.value, found.sure) for found in forced] == [("0", True)]
    assert kept == []
    assert [(found.change.value, found.sure) for found in asked] == [("allreduce:tree", True)]


def configuration(args: dict[str, Any], env: dict[str, str], release: str) -> ServerConfiguration:
    """A server of that SGLang release."""
    return ServerConfiguration(args=args, env=env, release=Release.parse(release))


def test_an_algorithm_without_a_way_back_to_ring_leaves_collectives_out() -> None:
    assert collectives_without_algorithm("Tree") == (
        "AllGather",
        "ReduceScatter",
        "Broadcast",
        "Reduce",
    )
    assert collectives_without_algorithm("allreduce:tree") == ()
    assert collectives_without_algorithm("nvls,ring;allreduce:pat") == ("AllReduce",)


@pytest.mark.parametrize(
    ("value", "hint"), [("NVLS", "allreduce:nvls,ring"), ("NVLSTree", "allreduce:nvlstree,ring")]
)
def test_an_algorithm_that_cannot_broadcast_is_told_with_a_second_choice(
    value: str, hint: str
) -> None:
    (told,) = apply_nccl_variable_rules("NCCL_ALGO", value)
    assert (
        (told.severity, told.code) == ("warning", "nccl_algorithm_missing")
        and "Broadcast" in told.message
        and hint in told.hint
    )
    assert not list(apply_nccl_variable_rules("NCCL_ALGO", f"{value},Ring"))


def test_variables_of_the_network_are_in_vain_on_one_host() -> None:
    env = {
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_NET_GDR_LEVEL": "SYS",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_PROTO": "LL",
    }
    (told,) = apply_nccl_server_rules(ServerConfiguration({"tp_size": 8}, env, gpus=8))
    assert (told.severity, told.code) == ("info", "nccl_network_unused")
    assert "NCCL_IB_HCA, NCCL_NET_GDR_LEVEL" in told.message and "SOCKET_IFNAME" not in told.message
    assert not list(
        apply_nccl_server_rules(ServerConfiguration({"tp_size": 16}, env, gpus=8, nodes=2))
    )
    assert not list(
        apply_nccl_server_rules(
            ServerConfiguration(
                {"tp_size": 8}, {**env, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, gpus=8
            )
        )
    )


def test_a_list_chooses_for_the_collective_it_names() -> None:
    assert allowed_words("ring;allreduce:^tree", "AllReduce", ALGORITHMS) == {
        word.lower() for word in ALGORITHMS
    } - {"tree"}
    assert allowed_words("ring;allreduce:^tree", "Broadcast", ALGORITHMS) == {"ring"}


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
    assert foreign_owner("NCCL_ASYNC_ERROR_HANDLING").startswith("PyTorch")
    assert (
        not is_known("NCCL_P2P_LEVELS") and nearest_variable("NCCL_P2P_LEVELS") == "NCCL_P2P_LEVEL"
    )
    assert nearest_variable("NCCL_XYZZY_QWERTY") == ""


def test_every_row_says_when_it_is_read() -> None:
    silent = [
        row.name
        for row in VARIABLES.values()
        if not row.always_read
        and not row.read_when
        and not row.never_logged
        and not row.exists.last
    ]
    assert silent == []
    assert [row.name for row in VARIABLES.values() if row.always_read and row.never_logged] == []


def test_every_default_is_legal() -> None:
    wrong = [
        (row.name, value)
        for row in VARIABLES.values()
        for _, value in row.default_in(None)
        if row.fault(value, None)
    ]
    assert wrong == []


def test_the_guide_shows_the_table() -> None:
    assert render_variable_table() in GUIDE.read_text()


@given(
    st.sampled_from(sorted(VARIABLES)),
    st.text(max_size=30),
    st.sampled_from(("", "2.18.6", "2.23.4", "2.30.7")),
)
def test_no_value_makes_a_row_raise(name: str, value: str, version: str) -> None:
    row, release = VARIABLES[name], Release.parse(version)
    row.fault(value, release)
    row.equals_default(value, release)
    assert row.values.means_same(value, value)
    list(variable_rules.apply_nccl_variable_rules(name, value, release))
