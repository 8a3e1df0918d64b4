"""Owns the promises of the figures' readers on cases from the field; each case is a data file,
checked by its meaning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_knowledge.sglang_metrics import (
    accept_length,
    accept_length_between,
    bench_serving,
    recognise_metrics_text,
    send_one,
    server_info,
    steady_runs,
)
from fleet_knowledge.sglang_metrics.prometheus_text import per_label, read_samples, total

FOLDER = Path(__file__).parent / "data" / "field"


def case(name: str) -> tuple[Any, Any]:
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content["input"], content["expected"]


def test_d01_labels_of_all_generations_and_values_of_all_spellings_are_read() -> None:
    text, expected = case("D01")
    samples = [[sample.name, dict(sample.labels), sample.value] for sample in read_samples(text)]
    numbers = [sample for sample in samples if sample[2] == sample[2]]
    assert numbers == expected["samples"]
    assert [sample[:2] for sample in samples if sample not in numbers] == expected[
        "without_a_number"
    ]
    assert total(read_samples(text), "sglang:spec_accept_length") is None
    assert total(read_samples(text), "sglang:gen_throughput") == 402.5, (
        "three generations of one gauge are not three servers"
    )
    assert (recognise_metrics_text(text) or {})["samples"][2] == expected["samples"][2]


def test_d02_data_parallel_ranks_are_summed_and_no_other() -> None:
    text, expected = case("D02")
    samples = read_samples(text)
    assert total(samples, "sglang:gen_throughput") == expected["gen_throughput"]
    assert per_label(samples, "sglang:gen_throughput", "dp_rank") == expected["per_dp"]
    assert (recognise_metrics_text(text) or {})["gen_throughput"] == expected["gen_throughput"]


def test_d04_the_accept_length_of_a_window_is_that_of_the_counters_growth() -> None:
    texts, expected = case("D04")
    assert expected.items() <= accept_length_between(texts["before"], texts["after"]).items()
    assert accept_length_between(texts["after"], texts["before"])["accept_len"] is None, (
        "the server restarted in between"
    )
    assert accept_length_between(texts["before"], texts["before"])["accept_len"] is None, (
        "no request ended in between"
    )
    older = texts["after"].replace("spec_verify_calls_total", "other_total")
    assert "no counter" in accept_length_between(texts["before"], older)["accept_len_note"]


def test_d05_without_metrics_the_servers_own_information_tells() -> None:
    answers, expected = case("D05")
    found = server_info.first_answer(answers)
    assert found is not None
    assert (found.gen_throughput, found.accept_length.length) == (
        expected["gen_throughput"],
        expected["accept_len"],
    )
    assert (found.source, found.version) == (expected["source"], expected["version"])
    assert "--enable-metrics" in (recognise_metrics_text(json.dumps(answers)) or {})["hint"]


def test_e01_a_summary_that_lost_requests_is_partial() -> None:
    told, expected = case("E01")
    (summary,) = bench_serving.read_serving_summaries(told["stdout"], told["num_prompts"])
    assert expected["figures"].items() <= summary.figures.items()
    assert (summary.status, summary.failed) == (expected["status"], expected["failed"])
    assert expected["hint_says"] in summary.hint and "Do not compare" in summary.hint
    assert (recognise_metrics_text(json.dumps(told)) or {})["state"] == "partial"


def test_e03_a_latency_that_nobody_saw_is_never_a_value() -> None:
    text, expected = case("E03")
    (summary,) = bench_serving.read_serving_summaries(text)
    assert (summary.status, list(summary.valid), list(summary.invalid)) == (
        expected["status"],
        expected["valid"],
        expected["invalid"],
    )
    assert "reasoning_content" in summary.hint


def test_e05_a_short_run_has_no_accept_length_and_the_second_run_has_its_own() -> None:
    told, expected = case("E05")
    short = server_info.parse_server_info(told["short_run"]).accept_length
    assert (short.length, short.text) == (expected["short_run"], "not measured")
    averages = told["averages"]
    alone = accept_length.accept_length_of_last_run(
        averages["before"],
        averages["verified_before"],
        averages["after"],
        averages["verified_in_run"],
    )
    assert alone.length == pytest.approx(expected["run_alone"])
    told_of_both = {
        "after_run1": averages["before"],
        "after_run2": averages["after"],
        "verify_ct": {"run1": 500, "run2": 1500},
    }
    assert (recognise_metrics_text(json.dumps(told_of_both)) or {})["accept_len"] == pytest.approx(
        expected["run_alone"]
    )
    assert (
        recognise_metrics_text(json.dumps({"case": "short", "server_info": told["short_run"]}))
        or {}
    )["accept_len"] is None


def test_e06_warm_up_runs_are_dropped_and_the_steady_median_is_told() -> None:
    told, expected = case("E06")
    found = steady_runs.select_steady_runs(told["rates"])
    assert (list(found.steady), found.value) == (expected["steady"], expected["value"])
    assert {str(at): why for at, why in found.dropped.items()} == expected["dropped"]
    assert steady_runs.is_jit_line(told["log"])
    assert steady_runs.select_steady_runs(told["rates"], {5: told["log"]}).needs_more, (
        "a run in which a kernel was built does not count"
    )


def test_e12_both_formats_of_one_request_are_read() -> None:
    texts, expected = case("E12")
    found = [send_one.read_send_one_results(text)[0].to_json() for text in texts]
    assert [
        {name: value for name, value in one.items() if name != "note"} for one in found
    ] == expected
    assert ["note" in one for one in found] == [False, False, True]
    assert [
        send_one.read_send_one_results(text)[0].accept_length(speculation=False) for text in texts
    ] == [None] * 3
