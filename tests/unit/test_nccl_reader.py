"""NCCL's and RCCL's lines as data: each file of data/field whose name begins with C gives, by
meaning, what stands beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.nccl.log.nccl_failures import NCCL_ERROR_PATTERNS, NCCL_FAILURES
from fleet_knowledge.nccl.log.nccl_reader import NcclReader

CASES = sorted((Path(__file__).parent / "data" / "field").glob("C*.json"))


def shown(text: str) -> dict[str, Any]:
    reader = NcclReader()
    for line in text.split("\n"):
        reader.feed(line)
    return reader.facts().to_json()


def info(*messages: str) -> str:
    return "\n".join(f"a:1:1 [0] NCCL INFO {message}" for message in messages)


def told(found: dict[str, Any], key: str) -> Any:
    return found["tuning"]["rows"] if key == "tuning" else found.get(key)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_log_shows_what_its_case_says(case: Path) -> None:
    content = json.loads(case.read_text())
    found, expected = shown(content["input"]), content["expected"]
    notes = {note["code"]: note["message"] + note["hint"] for note in found["notes"]}
    for code, words in expected.pop("notes", {}).items():
        assert words in notes[code]
    for words in expected.pop("hint", []):
        assert words in found["hint"]
    warns = [
        {key: warn[key] for key in ("host", "pid", "dev", "file", "msg")} for warn in found["warn"]
    ]
    assert expected.pop("warn", warns) == warns
    assert {key: told(found, key) for key in expected} == expected


def test_columns_of_the_table_are_named() -> None:
    assert shown("")["tuning"]["columns"] == ["func", "bytes", "algo", "proto", "channels", "count"]


def test_rank_0_is_counted_even_where_it_has_another_device() -> None:
    lines = (
        "a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE",
        "a:2:2 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 2 cudaDev 1 nvmlDev 1 busId 2 commId 0x5 - Init COMPLETE",
        "a:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "a:2:2 [1] NCCL INFO AllReduce: 128 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
    )
    assert shown("\n".join(lines))["tuning"]["rows"] == [["AllReduce", 128, "TREE", "LL", 1, 1]]


def test_a_line_that_came_several_times_counts_so_often() -> None:
    reader = NcclReader()
    reader.feed(
        "a:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}", 40
    )
    assert reader.facts().tuning[0].count == 40


def test_a_host_that_is_glued_to_a_message_belongs_to_the_next_one() -> None:
    reader = NcclReader()
    reader.feed("n1:5:5 [0] NCCL INFO Connected all treesn1:6:6 [1] node/a.cc:3 NCCL WARN bad")
    assert [(warn.host, warn.pid, warn.dev, warn.msg) for warn in reader.facts().warns] == [
        ("n1", 6, 1, "bad")
    ]


def test_rows_beyond_the_bound_are_counted_and_dropped() -> None:
    reader = NcclReader()
    for size in range(700):
        reader.feed(
            f"a:1:1 [0] NCCL INFO AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}"
        )
    for number in range(100):
        reader.feed(f"a:1:1 [0] x.cc:{number} NCCL WARN number {number}")
    facts = reader.facts()
    assert (len(facts.tuning), facts.tuning_dropped) == (512, 188)
    assert (len(facts.warns), facts.warns_dropped, facts.warn_lines) == (64, 36, 100)


def test_peer_access_that_the_job_switched_off_is_told_as_asked() -> None:
    lines = (
        "NCCL_P2P_DISABLE set by environment to 1",
        "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
    )
    [note] = [note for note in shown(info(*lines))["notes"] if note["code"] == "p2p_off"]
    assert "as the job requests" in note["message"]


def test_an_ordinary_start_has_no_failure() -> None:
    lines = (
        "NET/IB : No device found.",
        "NET/Plugin: Could not find: libnccl-net.so.",
        "init.cc:1 -> 0",
    )
    assert shown(info(*lines))["failure_class"] is None


def test_every_class_of_a_symptom_has_a_row() -> None:
    assert {row.failure_class for row in NCCL_ERROR_PATTERNS} <= {*FAILURES, *NCCL_FAILURES}


@given(
    st.lists(
        st.one_of(
            st.text(), st.from_regex(r"[a-z]{1,3}:\d:\d \[\d\] NCCL (INFO|WARN) [^\n]{0,60}")
        ),
        max_size=8,
    )
)
def test_no_text_makes_the_reader_raise(lines: list[str]) -> None:
    reader = NcclReader()
    for line in lines:
        reader.feed(line + " NCCL INFO x via -> Bytes -> ")
        reader.feed(line)
    json.dumps(reader.facts().to_json())


PIECES = (
    "a:1:1 [0] NCCL INFO ", " via P2P/", "0[0] -> 1[1]", "Channel 00", " Bytes -> ", "Algo ", "proto ", "channel{Lo..Hi}={", "- Init ",
    "comm 0x1 rank ", "nranks ", "9" * 30, " set by environment to ", "NCCL_ALGO", "NCCL WARN ", "[", "]", "\x00", "é", "\u0663", " ",
    "NET/IB : Using ",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_no_mixture_of_pieces_makes_the_reader_raise(pieces: list[str]) -> None:
    reader = NcclReader()
    reader.feed("".join(pieces))
    json.dumps(reader.facts().to_json())
