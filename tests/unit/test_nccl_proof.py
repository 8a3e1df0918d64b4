"""What NCCL's log proves of the variables that a job asked for, and what it cannot."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.nccl.log.nccl_reader import NcclReader
from fleet_knowledge.nccl.variable_verification import (
    VariableEvidence,
    VariableState,
    verify_variables,
)

DONE = "16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer"


def facts(*messages: str, version: str = "2.27.3+cuda12.9") -> NcclFacts:
    reader = NcclReader()
    for message in (f"NCCL version {version}", *messages):
        reader.feed(f"h:1:1 [0] NCCL INFO {message}")
    return reader.facts()


def state(
    env: Mapping[str, str], shown: NcclFacts | None, gpus: int = 8, nodes: int = 1
) -> VariableState:
    [proved] = verify_variables(env, shown, gpus, nodes)
    assert proved.detail
    return proved.state


def test_a_value_that_nccl_names_is_effective_as_nccl_reads_it() -> None:
    shown = facts(
        "NCCL_BUFFSIZE set by environment to 16777216.",
        "NCCL_P2P_LEVEL set by environment to SYS",
        DONE,
    )
    proved = verify_variables(
        {"NCCL_BUFFSIZE": "0x1000000", "NCCL_P2P_LEVEL": "4", "LANG": "C"}, shown, 8
    )
    assert [(one.variable, one.state) for one in proved] == [
        ("NCCL_BUFFSIZE", VariableState.EFFECTIVE),
        ("NCCL_P2P_LEVEL", VariableState.EFFECTIVE),
    ]


def test_another_value_on_any_rank_is_told() -> None:
    shown = facts(
        "NCCL_PROTO set by environment to LL", "NCCL_PROTO set by environment to Simple", DONE
    )
    assert verify_variables({"NCCL_PROTO": "LL"}, shown, 8) == [
        VariableEvidence("NCCL_PROTO", VariableState.OTHER_VALUE, "NCCL's log says Simple")
    ]


def test_a_value_with_a_unit_is_not_the_one_that_was_meant() -> None:
    assert (
        state({"NCCL_BUFFSIZE": "16M"}, facts("NCCL_BUFFSIZE set by environment to 16.", DONE))
        is VariableState.EFFECTIVE
    )
    assert (
        state({"NCCL_BUFFSIZE": "16777216"}, facts("NCCL_BUFFSIZE set by environment to 16.", DONE))
        is VariableState.OTHER_VALUE
    )


def test_a_variable_that_is_always_read_and_not_named_was_lost() -> None:
    assert state({"NCCL_PROTO": "LL"}, facts("Using network Socket", DONE)) is VariableState.MISSING


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_IB_TIMEOUT": "22"},  # no InfiniBand here
        {"NCCL_SHM_DISABLE": "1"},  # P2P everywhere
        {"NCCL_DEBUG_FILE": "/tmp/x"},  # never named
        {"NCCL_P2P_DISABLE": "0"},  # named only when it is 1
        {"NCCL_PROTO": ""},  # empty is unset
        {"NCCL_SOMETHING_NEW": "1"},
        {"RCCL_MSCCL_ENABLE": "0"},
    ],
    ids=lambda env: next(iter(env)),
)
def test_a_variable_that_nccl_need_not_read_voids_nothing(env: Mapping[str, str]) -> None:
    assert state(env, facts("Using network Socket", DONE)) is VariableState.NOT_NAMED


def test_a_level_beside_disabled_p2p_is_not_read() -> None:
    proved = verify_variables(
        {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"},
        facts("NCCL_P2P_DISABLE set by environment to 1", DONE),
        8,
    )
    assert [one.state for one in proved] == [VariableState.EFFECTIVE, VariableState.NOT_NAMED]


def test_an_older_version_that_does_not_name_it_proves_nothing_against_it() -> None:
    assert (
        state({"NCCL_P2P_DISABLE": "1"}, facts(DONE, version="2.21.5+cuda12.4"))
        is VariableState.NOT_NAMED
    )
    assert state({"NCCL_P2P_DISABLE": "1"}, facts(DONE)) is VariableState.MISSING


def test_without_a_log_there_is_no_evidence() -> None:
    assert state({"NCCL_PROTO": "LL"}, None) is VariableState.NO_EVIDENCE
    assert state({"NCCL_PROTO": "LL"}, NcclFacts()) is VariableState.NO_EVIDENCE


def test_a_log_without_the_part_of_variables_is_no_evidence() -> None:
    env = {"NCCL_PROTO": "LL", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}
    assert verify_variables(env, facts(DONE), 8)[-1].state is VariableState.NO_EVIDENCE
    env = {"NCCL_PROTO": "LL", "NCCL_DEBUG_SUBSYS": "^ENV"}
    assert verify_variables(env, facts(DONE), 8)[-1].state is VariableState.NO_EVIDENCE
    env = {"NCCL_PROTO": "LL", "NCCL_DEBUG_SUBSYS": "^TUNING"}
    assert verify_variables(env, facts(DONE), 8)[-1].state is VariableState.MISSING


def test_a_log_that_ends_before_a_communicator_is_no_evidence() -> None:
    assert state({"NCCL_PROTO": "LL"}, facts("Using network Socket")) is VariableState.NO_EVIDENCE


def test_one_gpu_has_nothing_to_prove_and_two_hosts_have() -> None:
    assert state({"NCCL_PROTO": "LL"}, None, gpus=1) is VariableState.NOT_NAMED
    assert state({"NCCL_PROTO": "LL"}, None, gpus=1, nodes=2) is VariableState.NO_EVIDENCE


def test_what_shows_without_its_name_is_believed() -> None:
    shown = facts("Using network IB", DONE)
    assert state({"NCCL_NET": "ib"}, shown) is VariableState.EFFECTIVE
    assert state({"NCCL_NET": "Socket"}, shown) is VariableState.OTHER_VALUE
    assert state({"NCCL_DEBUG": "INFO"}, shown) is VariableState.EFFECTIVE
