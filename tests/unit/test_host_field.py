"""Owns the promises of the hosts' readers on cases from the field; each case is a data file,
checked by its meaning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.report.diagnosis_output import FileDiagnosis, diagnose_file, merge_diagnoses
from fleet_knowledge.host import recognise_host_text
from fleet_knowledge.host.topology import read_topology
from fleet_knowledge.server_log.log_reader import LogReader

DATA = Path(__file__).parent / "data"
TOPOLOGIES = sorted((DATA / "host" / "topologies").glob("*.json"))


def case(name: str) -> tuple[Any, Any]:
    content = json.loads((DATA / "field" / f"{name}.json").read_text(encoding="utf-8"))
    return content["input"], content["expected"]


def told(text: str) -> dict[str, Any]:
    found = recognise_host_text(text)
    assert found is not None
    return dict(found)


def together(*texts: str) -> dict[str, Any]:
    """What `fleetctl diagnose` makes of several files."""

    def told(text: str) -> FileDiagnosis:
        reader = LogReader()
        reader.feed(text.encode())
        return diagnose_file("file", reader.finish(), text)

    return merge_diagnoses([told(text) for text in texts])


def contain_all(texts: list[str], words: list[str]) -> bool:
    return all(any(word in text for text in texts) for word in words)


def test_f01_a_full_mesh_of_nvlinks_and_the_nearest_network_card_of_each_gpu() -> None:
    text, expected = case("F01")
    found = told(text)
    assert (found["kind"], {name: found[name] for name in expected}) == ("topology", expected)


def test_f02_two_islands_below_two_processors() -> None:
    text, expected = case("F02")
    found = told(text)
    notes = expected.pop("notes")
    assert {name: found[name] for name in expected} == expected
    assert contain_all(found["notes"], notes)


def test_f04_a_lost_gpu_is_named_by_its_address_in_every_spelling() -> None:
    texts, expected = case("F04")
    found = [told(text) for text in texts]
    assert [entry["bus_ids"] for entry in found] == expected["bus_ids"]
    assert {(entry["failure_class"], entry["host_state"]) for entry in found} == {
        (expected["failure_class"], expected["host_state"])
    }
    assert all(word in entry["hint"] for entry in found for word in expected["hint"])
    assert all(entry["remaining_gpus"] is None for entry in found), (
        "of the other GPUs nothing is known"
    )


def test_f06_lscpu_is_read_in_other_languages_and_nodes_without_processors_do_not_count() -> None:
    texts, expected = case("F06")
    for text, facts in zip(texts[:-1], expected[:-1], strict=True):
        found = told(text)
        assert {name: found[name] for name in facts} == facts
    assert recognise_host_text(texts[-1]) is None


def test_the_number_of_processors_is_found_under_a_label_of_any_language() -> None:
    lines = "Xarch: x86_64\nXcpus: 96\nXlist: 0-95\nXname: Intel(R) Xeon(R) 6972P\nXthreads: 2\nXcores: 24\nXsockets: 2\nNUMA X: 2\n"
    assert told(lines) | {
        "cpus": 96,
        "sockets": 2,
        "cores_per_socket": 24,
        "threads_per_core": 2,
    } == told(lines)


def test_f07_what_makes_two_equal_hosts_unequal_is_told_with_the_least_of_each() -> None:
    hosts, expected = case("F07")
    found = told(json.dumps(hosts))
    assert found["numa_nodes"] == expected["numa_nodes"]
    assert (found["hosts"]["north"]["warnings"], found["hosts"]["south"]["warnings"]) == (
        [],
        expected["warnings"],
    )
    assert found["hosts"]["south"]["slowest"] == expected["slowest"]


@pytest.mark.parametrize("log", ["error", "warning"])
def test_a21_the_holders_of_gpu_memory_are_named_and_not_to_be_killed(log: str) -> None:
    texts, expected = case("A21")
    document = together(texts[log], texts["processes"])
    assert (document["failure_class"], (document["details"] | document)["pids"]) == (
        "gpu_busy_leftover",
        expected["pids"],
    )
    assert [
        holder["standing"] for holder in (document["details"] | document)["holders"]
    ] == expected["standings"]
    assert all(word in document["hint"] for word in expected["hint"])


def test_a23_a_fabric_that_is_not_joined_is_told_though_every_gpu_is_listed() -> None:
    given_, expected = case("A23")
    details, listed = told(given_["details"]), told(given_["list"])
    assert (details["failure_class"], details["fabric"]) == (
        expected["failure_class"],
        expected["fabric"],
    )
    assert expected["cause"] in details["cause_line"]
    assert (listed["failure_class"], len(listed["gpus"])) == (None, 8)
    assert "Fabric State" in listed["fabric"], "a list alone proves nothing of the fabric"
    document = together(given_["log"], given_["list"])
    assert document["failure_class"] == expected["failure_class"]
    assert all(word in document["hint"] for word in expected["hint"])


@pytest.mark.parametrize("file", TOPOLOGIES, ids=lambda file: file.stem)
def test_each_kind_of_topology_table_is_read_by_its_meaning(file: Path) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    found = read_topology(content["input"]).to_json()
    expected = content["expected"]
    for name in ("notes", "warnings"):
        assert contain_all(found[name], expected.get(name, []))
        assert expected.pop(name, None) != [] or found[name] == []
    assert {name: found[name] for name in expected} == expected


def test_the_digest_is_of_the_wires_and_not_of_their_print() -> None:
    text, _ = case("F01")
    as_blanks = "\n".join(" ".join(line.split()) for line in text.splitlines())
    assert read_topology(as_blanks).digest == read_topology(text).digest
    assert read_topology(text.replace("NV18", "NV12")).digest != read_topology(text).digest


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='GPU0123 \tXNVSYIMHDE/A,-\n:.{}[]"pid\x1b[4m', max_size=300))
def test_no_text_at_all_breaks_a_reader(text: str) -> None:
    recognise_host_text(text)
    assert read_topology("\tGPU0\tGPU1\n" + text).gpus >= 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_text_that_is_cut_anywhere_is_still_read(data: st.DataObject) -> None:
    text, _ = case("F01")
    cut = text[: data.draw(st.integers(0, len(text)))]
    found = read_topology(cut)
    assert found.gpus in (0, *range(1, 9))
    assert found.nvlinks_per_pair in (0, 18), "a cut cell is no slower link"
