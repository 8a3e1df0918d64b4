"""SGLang's options and variables by version: what was read of its releases, and how that is asked
for.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.engines.sglang.launch.argv import NEGATABLE
from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.environment_rules import (
    VARIABLE_CHANGES,
    apply_environment_rules,
    find_overwrites,
)
from fleet_knowledge.sglang.retired_arguments import RETIRED_ARGUMENTS
from fleet_knowledge.sglang.server_arguments import (
    NEWEST_SGLANG_READ,
    ResolvedName,
    argument_aliases,
    is_negatable,
    known_arguments,
    nearest_argument,
    newest_release,
    resolve_name,
)
from fleet_knowledge.sglang_releases import Certainty, certainty_of, release_of_image


def release(text: str) -> Release:
    found = Release.parse(text)
    assert found
    return found


@pytest.mark.parametrize(
    "written",
    ["tp", "--tp", "tp-size", "--tensor-parallel-size", "tensor_parallel_size", "tp_size"],
)
def test_all_spellings_of_an_argument_are_one(written: str) -> None:
    assert resolve_name(written) == ResolvedName("tp_size", known=True)


def test_a_unique_beginning_is_completed() -> None:
    assert resolve_name("mem-fraction") == ResolvedName(
        "mem_fraction_static", known=True, shortened=True
    )
    assert resolve_name("speculative_draft_model_p") == ResolvedName(
        "speculative_draft_model_path", known=True, shortened=True
    )


def test_a_beginning_that_a_later_version_finds_ambiguous_is_what_it_meant_and_says_so() -> None:
    old, new = (
        resolve_name("speculative_draft", release("0.4.6")),
        resolve_name("speculative_draft", release("0.5.9")),
    )
    assert old == ResolvedName("speculative_draft_model_path", known=True, shortened=True)
    assert not new.known and "speculative_draft_model_revision" in new.others
    unknown_version = resolve_name("speculative_draft")
    assert (
        unknown_version.name == "speculative_draft_model_path"
        and "speculative_draft_model_revision" in unknown_version.others
    )


def test_a_beginning_that_never_meant_one_argument_is_not_guessed() -> None:
    assert resolve_name("cuda_graph").known is False
    assert len(resolve_name("cuda_graph").others) > 5


def test_every_other_spelling_leads_to_a_known_argument() -> None:
    assert [
        spelling for spelling, name in argument_aliases().items() if name not in known_arguments()
    ] == []
    assert [spelling for spelling in argument_aliases() if spelling in known_arguments()] == []


def test_a_typing_error_finds_the_argument_that_was_meant() -> None:
    assert nearest_argument("speculative_num_setps") == "speculative_num_steps"
    assert nearest_argument("tensor_paralel_size") == "tp_size"
    assert nearest_argument("zzz") == ""


def test_agent_and_table_agree_on_the_flags_that_have_a_no_form() -> None:
    assert {name for name in known_arguments() if is_negatable(name)} == NEGATABLE


def test_an_argument_is_in_the_versions_that_were_read_and_unsure_between_two_of_them() -> None:
    row = known_arguments()["cuda_graph_max_bs_decode"]
    assert [
        row.certainty_in(release(text)) for text in ("0.5.13", "0.5.14", "0.5.23", "0.6.0")
    ] == [Certainty.NO, Certainty.YES, Certainty.YES, Certainty.YES]
    gone = known_arguments()["cuda_graph_max_bs"]
    assert [gone.certainty_in(release(text)) for text in ("0.5.18", "0.5.19", "0.5.20")] == [
        Certainty.YES,
        Certainty.MAYBE,
        Certainty.NO,
    ]


def test_the_tables_were_read_up_to_one_newest_release() -> None:
    assert newest_release() == release(NEWEST_SGLANG_READ)


def test_every_retired_option_is_one_that_was_read_in_a_version_that_retires_it() -> None:
    for name, row in RETIRED_ARGUMENTS.items():
        assert row.versions.contains(release(known_arguments()[name].last or NEWEST_SGLANG_READ)), (
            name
        )


def test_what_replaces_a_retired_option_is_an_option() -> None:
    for name, row in RETIRED_ARGUMENTS.items():
        word = row.instead.partition(":")[0].partition(",")[0]
        assert not word or word in known_arguments(), name


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmsysorg/sglang:v0.4.6.post4-cu124", "0.4.6.post4"), ("registry.lab:5000/team/sglang:0.5.9", "0.5.9"),
        ("lmsysorg/sglang:v0.5.9@sha256:00ff", "0.5.9"), ("lmsysorg/sglang:latest", None), ("registry.lab:5000/sglang", None),
        ("nvcr.io/nvidia/pytorch:25.01.00-py3", None), ("lmsysorg/sglang:dev-cu13", None), ("", None),
    ],
)  # fmt: skip
def test_the_tag_of_an_image_of_sglang_tells_its_version(image: str, version: str | None) -> None:
    assert release_of_image(image) == (release(version) if version else None)


def test_a_bounded_fact_is_unsure_for_a_version_that_is_not_known() -> None:
    assert [certainty_of(VersionRange("0.5.3"), None), certainty_of(VersionRange(), None), certainty_of(VersionRange("0.5.3"), release("0.5.1"))] == [
        Certainty.MAYBE, Certainty.YES, Certainty.NO,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "env", "args", "lost"),
    [
        ("0.4.6.post5", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {}, ["4"]),
        ("0.5.9", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {}, []),
        ("0.5.9", {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, {}, ["8"]),
        ("0.5.3", {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}, {}, ["0", "0"]),
        ("0.5.6", {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}, {}, []),
        ("0.5.6", {"NCCL_NVLS_ENABLE": "2"}, {"enable_nccl_nvls": True}, ["1"]),
        (
            "0.5.9",
            {"NCCL_ALGO": "Ring"},
            {"enable_deterministic_inference": True, "tp_size": 8},
            ["allreduce:tree"],
        ),
        ("0.5.9", {"NCCL_ALGO": "Ring"}, {"enable_deterministic_inference": True}, []),
        (
            "0.5.9",
            {"NCCL_MAX_NCHANNELS": "16"},
            {"enable_deterministic_inference": True, "tp_size": 8},
            [],
        ),
        (
            "0.5.23",
            {"NCCL_MAX_NCHANNELS": "16"},
            {"enable_deterministic_inference": True, "tp_size": 8},
            ["8"],
        ),
    ],
)
def test_a_variable_that_a_version_overwrites_is_found(
    version: str, env: dict[str, str], args: dict[str, object], lost: list[str]
) -> None:
    asked = ServerConfiguration(args, env, release=release(version))
    assert [found.change.value for found in find_overwrites(asked) if found.sure] == lost


def test_a_variable_that_only_some_versions_overwrite_is_unsure_until_the_version_is_known() -> (
    None
):
    assert [
        found.sure for found in find_overwrites(ServerConfiguration(env={"NCCL_CUMEM_ENABLE": "1"}))
    ] == [False]
    assert [
        found.sure
        for found in find_overwrites(ServerConfiguration(env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}))
    ] == [True]


def test_every_change_names_its_source() -> None:
    assert [row.variable for row in VARIABLE_CHANGES if not row.source] == []


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4))
def test_any_environment_is_judged(env: dict[str, str]) -> None:
    assert all(
        remark.message and remark.subject
        for remark in apply_environment_rules(ServerConfiguration(env=env))
    )
