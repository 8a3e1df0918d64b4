"""Owns the promises of the figures' readers beyond the field cases: other versions, other shapes,
hostile text.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_knowledge.sglang_metrics import (
    accept_length,
    bench_one_batch,
    bench_serving,
    recognise_metrics_text,
    server_info,
    steady_runs,
)
from fleet_knowledge.sglang_metrics.accept_rate import (
    AcceptRateDefinition,
    DraftShape,
    accept_rates,
    definition_in_version,
    definitions_that_fit,
    is_consistent,
    length_from_rate,
)
from fleet_knowledge.sglang_metrics.device_timer import DeviceTimes, mean_cycle
from fleet_knowledge.sglang_metrics.prometheus_text import is_complete, read_samples, total

EAGLE = DraftShape(steps=5, draft_tokens=6)
TREE = DraftShape(steps=3, draft_tokens=8)


# Accept rate


def test_one_length_has_three_rates() -> None:
    assert accept_rates(3.0, TREE) == pytest.approx(
        {
            AcceptRateDefinition.OF_STEPS: 0.75,
            AcceptRateDefinition.OF_TOKENS: 0.375,
            AcceptRateDefinition.OF_DRAFTS: 2 / 7,
        }
    )


@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("definition", AcceptRateDefinition)
def test_a_rate_leads_back_to_its_length(
    shape: DraftShape, definition: AcceptRateDefinition
) -> None:
    assert length_from_rate(
        accept_rates(2.4, shape)[definition], definition, shape
    ) == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("version", "definition"),
    [
        ("0.5.2", None), ("0.5.3", AcceptRateDefinition.OF_STEPS), ("0.5.4.post3", AcceptRateDefinition.OF_STEPS), ("0.5.5", AcceptRateDefinition.OF_TOKENS),
        ("0.5.10.post1", AcceptRateDefinition.OF_TOKENS), ("0.5.11", AcceptRateDefinition.OF_DRAFTS), ("v0.5.23", AcceptRateDefinition.OF_DRAFTS), ("main", None),
    ],
)  # fmt: skip
def test_a_version_says_which_rate_its_log_shows(
    version: str, definition: AcceptRateDefinition | None
) -> None:
    assert definition_in_version(version) is definition


def test_a_rate_without_speculation_or_shape_is_none_and_not_zero() -> None:
    assert accept_rates(None, EAGLE) == {}
    assert accept_rates(2.0, DraftShape()) == {}
    assert accept_rates(7.0, DraftShape(steps=0, draft_tokens=8)).keys() == {
        AcceptRateDefinition.OF_TOKENS,
        AcceptRateDefinition.OF_DRAFTS,
    }, "NGRAM has no steps"
    assert DraftShape.from_arguments(
        {"speculative_num_steps": None, "speculative_num_draft_tokens": "4"}
    ) == DraftShape(None, 4)


def test_a_servers_rate_and_length_are_checked_by_its_own_definition() -> None:
    assert is_consistent(0.375, 3.0, TREE, "0.5.9") is True
    assert is_consistent(0.375, 3.0, TREE, "0.5.23") is False
    assert is_consistent(0.375, 3.0, TREE, "0.5.1") is None
    assert definitions_that_fit(0.29, 3.0, TREE) == (AcceptRateDefinition.OF_DRAFTS,)
    assert definitions_that_fit(0.99, 3.0, TREE) == ()


# Window


def test_an_accept_length_that_was_not_measured_is_no_number() -> None:
    absent = [
        accept_length.accept_length_from_counters(
            accept_length.SpeculationCounters(), accept_length.SpeculationCounters(9.0, 3.0)
        ),
        accept_length.accept_length_from_counters(
            accept_length.SpeculationCounters(9.0, 3.0), accept_length.SpeculationCounters(8.0, 4.0)
        ),
        accept_length.accept_length_from_requests([(120.0, None), (80.0, 0)]),
        accept_length.accept_length_from_log([(2.5, 0), (0.0, 40)]),
        accept_length.accept_length_from_average(0.0),
        accept_length.accept_length_of_last_run(2.0, 100, None, 50),
        accept_length.accept_length_of_last_run(2.0, 100, 2.5, 0),
    ]
    assert [one.length for one in absent] == [None] * len(absent)
    assert all(one.reason and one.text == "not measured" for one in absent)


def test_requests_and_log_lines_stand_in_for_counters() -> None:
    told = accept_length.accept_length_from_requests([(300.0, 100.0), (100.0, 100.0), (50.0, None)])
    assert (told.length, told.verify_count, told.source) == (2.0, 200, "requests")
    assert accept_length.accept_length_from_log([(2.0, 300), (3.0, 100)]).length == 2.25, (
        "weighted by steps, not one mean of lines"
    )
    assert (
        accept_length.first_measured(
            accept_length.accept_length_from_counters(
                accept_length.SpeculationCounters(), accept_length.SpeculationCounters()
            ),
            told,
        )
        is told
    )


def test_a_flush_between_two_runs_leaves_the_later_average_to_the_run() -> None:
    assert accept_length.accept_length_of_last_run(4.0, 10_000, 1.5, 100).length == 1.5


# /metrics


def test_repeated_counters_count_once_and_streams_are_summed() -> None:
    text = "".join(
        f'sglang:generation_tokens_total{{is_streaming="{streaming}",tp_rank="{rank}"}} {value}\n'
        for streaming, value in (("true", 10), ("false", 5))
        for rank in range(4)
    )
    assert total(read_samples(text), "sglang_generation_tokens_total") == 15.0


def test_a_cut_off_answer_is_told() -> None:
    assert is_complete("a 1\n") and not is_complete("a 1") and not is_complete("")


BROKEN = [
    "", "404 page not found", "sglang:x{", 'sglang:x{a="b} 1', 'sglang:x{a="b"} ', "sglang:x one", "{} 1", "\x00\xff", "sglang:x{a=b} 1",
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_broken_lines_are_no_samples(text: str) -> None:
    assert read_samples(text) == ()


# Device timer

TIMES = {
    "target_verify": 0.9,
    "eagle_draft": 0.03,
    "eagle_draft_extend": 0.02,
    "extend": 0.4,
    "decode": 0.01,
}


def exposed(seconds: dict[str, float], batches: float | None = None, name: str = "forward") -> str:
    lines = [
        f'sglang:{name}_execution_seconds_total{{category="{category}",tp_rank="0"}} {value}'
        for category, value in seconds.items()
    ]
    if batches is not None:
        lines.append(f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph"}} {batches}')
        lines.append('sglang:cuda_graph_passes_total{mode="prefill_none"} 99')
    return "\n".join(lines) + "\n"


def test_a_cycle_is_split_into_draft_and_verify() -> None:
    before = DeviceTimes.from_metrics(exposed(TIMES, 40))
    after = DeviceTimes.from_metrics(
        exposed({name: 2 * value for name, value in TIMES.items()}, 80)
    )
    found = mean_cycle(before, after)
    assert found is not None
    assert (found.draft_s, found.extend_s, found.verify_s, found.cycles) == pytest.approx(
        (0.001, 0.0005, 0.0225, 40)
    )
    assert found.verify_share == pytest.approx(0.9375)


def test_a_timer_that_does_not_split_or_restarted_tells_no_cycle() -> None:
    whole = DeviceTimes.from_metrics(
        exposed({"forward_decode": 1.0, "forward_extend": 0.1}, 10, "gpu")
    )
    assert whole.seconds == {"decode": 1.0, "extend": 0.1}
    later = DeviceTimes.from_metrics(exposed(TIMES, 80))
    assert mean_cycle(DeviceTimes(), whole) is None
    assert (
        mean_cycle(later, DeviceTimes.from_metrics(exposed(dict.fromkeys(TIMES, 0.0), 90))) is None
    )
    assert mean_cycle(later, DeviceTimes()) is None
    assert mean_cycle(DeviceTimes(), DeviceTimes.from_metrics(exposed(TIMES))) is None, (
        "no cycle can be counted"
    )
    alone = mean_cycle(DeviceTimes(), DeviceTimes.from_metrics(exposed(TIMES)), cycles=10)
    assert alone is not None and alone.verify_s == pytest.approx(0.09)


# Server information

DECODE = {
    "version": "0.5.9",
    "internal_states": [{"last_gen_throughput": 80.0, "avg_spec_accept_length": 2.0}],
}


@pytest.mark.parametrize(
    ("info", "throughput", "length"),
    [
        (
            {"internal_states": [{"last_gen_throughput": 10.0}, {"last_gen_throughput": 12.5}]},
            22.5,
            None,
        ),
        (
            {"internal_states": {"last_gen_throughput": 10.0, "avg_spec_accept_length": 2.5}},
            10.0,
            2.5,
        ),
        (
            {
                "internal_states": [{"last_gen_throughput": 0.0}],
                "prefill": [{}],
                "decode": [DECODE],
            },
            80.0,
            2.0,
        ),
        ({"prefill": [], "decode": [DECODE, {"internal_states": []}]}, 80.0, 2.0),
        ({"last_gen_throughput": 5.0}, 5.0, None),
        ({"internal_states": []}, None, None),
        ({"internal_states": "gone"}, None, None),
        (
            {"internal_states": [{"last_gen_throughput": "n/a", "avg_spec_accept_length": 0}]},
            None,
            None,
        ),
    ],
)
def test_every_shape_of_server_information_is_read(
    info: dict[str, Any], throughput: float | None, length: float | None
) -> None:
    found = server_info.parse_server_info(info)
    assert (found.gen_throughput, found.accept_length.length) == (throughput, length)


def test_the_newer_endpoint_is_asked_first_and_a_router_is_recognised() -> None:
    newer, older = {**DECODE, "version": "0.5.23"}, DECODE
    found = server_info.first_answer({"/get_server_info": older, "/server_info": json.dumps(newer)})
    assert found is not None and (found.version, found.source) == ("0.5.23", "/server_info")
    assert server_info.first_answer({"/server_info": 404}) is None
    assert (recognise_metrics_text(json.dumps({"prefill": [], "decode": [DECODE]})) or {})[
        "role"
    ] == "decode"
    assert (
        server_info.server_arguments_in({"server_args": {"tp_size": 8}, "version": "1"})["tp_size"]
        == 8
    )


# Benchmarks

NEWER = """\
Namespace(backend='sglang', num_prompts=64, disable_stream=False)
 50%|     | 32/64 [00:01<00:01]100%|    | 64/64 [00:02<00:00, 30.1it/s]
============ Serving Benchmark Result ============
Backend:                                 sglang-oai
Traffic request rate:                    8.0
Max request concurrency:                 16
Successful requests:                     64
Benchmark duration (s):                  2.10
Total generated tokens:                  640
Total generated tokens (retokenized):    641
Output token throughput (tok/s):         304.76
Accept length:                           2.75
Mean E2E Latency (ms):                   251.47
P95 TTFT (ms):                           334.37
Median TPOT (ms):                        9.10
==================================================
"""


def test_a_newer_summary_is_complete_by_its_own_arguments() -> None:
    (summary,) = bench_serving.read_serving_summaries(NEWER)
    figures = summary.figures
    assert (summary.status, summary.requested, summary.failed, summary.warnings) == (
        "ok",
        64,
        0,
        (),
    )
    assert (figures["accept_len"], figures["concurrency"], figures["request_rate"]) == (
        2.75,
        16,
        8.0,
    )
    assert (figures["mean_e2e_ms"], figures["p95_ttft_ms"], figures["median_tpot_ms"]) == (
        251.47,
        334.37,
        9.10,
    )


def test_the_progress_bar_tells_what_was_asked_for() -> None:
    (summary,) = bench_serving.read_serving_summaries(
        NEWER.replace("num_prompts=64, ", "").replace("64/64", "64/80")
    )
    assert (summary.status, summary.requested, summary.failed) == ("partial", 80, 16)


def test_what_was_not_streamed_has_no_first_token() -> None:
    (summary,) = bench_serving.read_serving_summaries(
        NEWER.replace("disable_stream=False", "disable_stream=True")
    )
    assert (summary.status, summary.invalid) == ("invalid_latency", ("ttft", "tpot"))
    assert {"output_tok_s", "mean_e2e_ms"} <= set(summary.valid)


def test_a_run_without_an_answer_has_failed() -> None:
    (summary,) = bench_serving.read_serving_summaries(
        NEWER.replace(
            "Successful requests:                     64",
            "Successful requests:                     0",
        )
    )
    assert (summary.status, summary.valid) == ("failed", ())


def test_json_lines_of_bench_serving_are_read_with_their_lost_requests() -> None:
    told = {
        "backend": "sglang", "request_rate": math.inf, "max_concurrency": None, "completed": 3, "duration": 2.0, "total_output_tokens": 30,
        "total_output_tokens_retokenized": 30, "output_throughput": 15.0, "mean_ttft_ms": 12.0, "mean_e2e_latency_ms": 90.0,
        "accept_length": None, "errors": ["", "", "", "ServerDisconnectedError"],
    }  # fmt: skip
    (summary,) = bench_serving.read_serving_summaries(json.dumps(told) + "\n")
    assert (summary.status, summary.failed) == ("partial", 1)
    assert (summary.figures["request_rate"], summary.figures["mean_e2e_ms"]) == ("inf", 90.0)
    assert json.dumps(summary.to_json(), allow_nan=False)


def test_several_summaries_in_one_file_are_told_one_by_one() -> None:
    assert [
        one.figures["completed"]
        for one in bench_serving.read_serving_summaries(NEWER + NEWER.replace(" 64\n", " 60\n", 1))
    ] == [64, 60]


ONE_BATCH = """\
Warmup ...
Prefill. latency: 0.90000 s, throughput:    100.00 token/s
Total. latency:  1.000 s, throughput:    100.00 token/s
Benchmark ...
Prefill. latency: 0.05000 s, throughput:  20480.00 token/s
Decode 0. Batch size: 1, latency: 0.02000 s, throughput:     50.00 token/s
Decode.  median latency: 0.01000 s, median throughput:    100.00 token/s
Total. latency:  0.300 s, throughput:   3500.00 token/s
"""
SERVER_0_4_6 = """\
======== Warmup Begin ========
batch size: 16
latency: 9.00 s
======== Warmup End   ========

batch size: 8
input_len: 1024
output_len: 16
latency: 0.50 s
ttft: 0.10 s
Last generation throughput: 120.00 tok/s
Input throughput: 81920.00 tok/s
output throughput: 320.00 tok/s
"""
SERVER_0_4_1 = """\
batch size: 2
latency: 1.00 s
output throughput: 40.00 token/s
(input + output) throughput: 90.00 token/s
"""
TABLE = """\
| batch size | latency (s) | input throughput (tok/s) | output throughput (tok/s) | acc length | ITL (ms) |
| ---------- | ----------- | ------------------------ | ------------------------- | ---------- | -------- |
| 4 | 1.50 | 900.00 | 240.00 | 2.31 | 16.6 |
| 8 | 2.50 | 950.00 | 300.00 | n/a | 26.6 |
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE_BATCH, [{"input_tok_s": 20480.0, "output_tok_s": 100.0, "decode_latency_s": 0.01, "latency_s": 0.3}]),
        (SERVER_0_4_6, [{"batch_size": 8, "ttft_s": 0.1, "input_tok_s": 81920.0, "output_tok_s": 320.0, "last_gen_tok_s": 120.0}]),
        (TABLE, [{"batch_size": 4, "accept_len": 2.31, "output_tok_s": 240.0}, {"batch_size": 8, "accept_len": None}]),
        (SERVER_0_4_1, [{"output_tok_s": 40.0, "overall_tok_s": 90.0}]),
        ('{"batch_size": 1, "output_throughput": 61.0, "acc_length": -1.0}\n', [{"accept_len": None, "output_tok_s": 61.0}]),
        ('{"batch_size": 1, "prefill_latency": 0.1, "median_decode_throughput": 9.0}\n', [{"output_tok_s": 9.0}]),
    ],
    ids=["one_batch", "server-0.4.6", "table", "server-0.4.1", "jsonl", "one_batch-jsonl"],
)  # fmt: skip
def test_every_format_of_one_batch_is_read_without_its_warm_up(
    text: str, expected: list[dict[str, Any]]
) -> None:
    found = bench_one_batch.read_one_batch_results(text)
    assert len(found) == len(expected)
    assert all(one.items() <= batch.items() for one, batch in zip(expected, found, strict=True))
    assert (recognise_metrics_text(text) or {})["kind"] == "bench_one_batch"


# Runs


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        ([100.0, 101.0], ()), ([100.0, 110.0, 120.0], ()), ([None, 100.0, 101.0, 102.0], (2, 3, 4)),
        ([0.0, 100.0, 101.0, 102.0], (2, 3, 4)),
        ([99.0, 100.0, 101.0, 102.0], (1, 2, 3, 4)), ([100.0, 101.0, 102.0, 50.0], ()), ([], ()),
    ],
)  # fmt: skip
def test_steady_runs_are_the_last_that_agree(
    values: list[float | None], steady: tuple[int, ...]
) -> None:
    found = steady_runs.select_steady_runs(values)
    assert (found.steady, found.needs_more) == (steady, not steady)
    assert found.dropped.keys() == set(range(1, len(values) + 1)) - set(steady)


# Any text

TEXT = st.text(
    alphabet=st.sampled_from(list('sglang:_{}="\\+-.0123456789eE|=()[],/ \n\r\tabcINF*#')),
    max_size=400,
) | st.text(max_size=200)


@given(TEXT)
def test_no_text_makes_a_reader_raise_and_what_it_tells_is_json(text: str) -> None:
    found = recognise_metrics_text(text)
    assert found is None or json.dumps(found)


KEYS = [
    "internal_states", "decode", "prefill", "last_gen_throughput", "avg_spec_accept_length", "version", "server_args", "runs", "before",
    "after", "/server_info", "stdout", "num_prompts", "completed", "total_output_tokens", "batch_size", "output_throughput", "acc_length",
    "errors", "sglang:generation_tokens_total",
]  # fmt: skip
LEAF = st.none() | st.booleans() | st.floats() | st.text(max_size=5)
MAPPING = st.sampled_from(KEYS)
VALUE = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MAPPING, inner, max_size=4),
    max_leaves=12,
)


@given(VALUE)
def test_no_json_makes_a_reader_raise(value: Any) -> None:
    recognise_metrics_text(json.dumps(value))


@pytest.mark.parametrize(
    "unit",
    ["=", " ", "| 1", "9", "acc_length=", "Warmup Begin", "\n", 'sglang:x{a="b",', "1/2 [", "x: "],
)
def test_a_hostile_text_costs_no_more_than_its_length(unit: str) -> None:
    assert recognise_metrics_text(unit * (200_000 // len(unit))) is None


def test_a_summary_that_tells_its_failed_requests_needs_no_other_count() -> None:
    counts = "Successful requests: 95\nFailed requests: 5\nMaximum request concurrency: 16\n"
    text = counts + "Output token throughput (tok/s): 900.0\nMean TTFT (ms): 10.0\n"
    (found,) = bench_serving.read_serving_summaries(text)
    assert (found.status, found.requested, found.failed, found.figures["concurrency"]) == (
        "partial",
        100,
        5,
        16,
    )
    assert not found.warnings and "5 %" in found.hint
    (whole,) = bench_serving.read_serving_summaries(
        text.replace("Failed requests: 5", "Failed requests: 0")
    )
    assert (whole.status, whole.failed) == ("ok", 0)


def test_no_time_between_tokens_is_no_time_of_zero() -> None:
    text = "Successful requests: 8\nTotal generated tokens: 8\nMean TTFT (ms): 91.5\nMean ITL (ms): 0.00\nP99 ITL (ms): 0.00\n"
    (found,) = bench_serving.read_serving_summaries(text)
    assert (
        found.invalid == ("itl",)
        and "mean_ttft_ms" in found.valid
        and "mean_itl_ms" not in found.valid
    )
    assert found.status == "ok" and any("between tokens" in warning for warning in found.warnings)


def test_a_hit_rate_in_percent_becomes_a_share() -> None:
    shown = recognise_metrics_text(
        'sglang:cache_hit_rate{name="m"} 62.5\nsglang:gen_throughput{name="m"} 1.0\n'
    )
    assert shown is not None and shown["cache_hit_rate"] == 0.625


def test_shares_and_lengths_of_data_parallel_ranks_are_not_summed() -> None:
    ranks = "".join(f'sglang:{name}{{dp_rank="{rank}"}} {value}\n' for name, *values in (
        ("cache_hit_rate", 0.6, 0.8), ("spec_accept_length", 2.0, 3.0), ("token_usage", 0.2, 0.4), ("gen_throughput", 10, 20),
    ) for rank, value in enumerate(values))  # fmt: skip
    shown = recognise_metrics_text(ranks)
    assert shown is not None
    figures = (
        shown["cache_hit_rate"],
        shown["accept_len"],
        shown["token_usage"],
        shown["gen_throughput"],
    )
    assert figures == pytest.approx((0.7, 2.5, 0.3, 30.0))
