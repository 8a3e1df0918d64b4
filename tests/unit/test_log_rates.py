"""Owns the promises of rates from batch lines: columns read as words do, sums over the right ranks,
idle time left out.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fleet_knowledge.server_log.log_reader import LogReader
from fleet_knowledge.server_log.parsing.batch_columns import columns_from_batch, detect_layout
from fleet_knowledge.server_log.parsing.batch_lines import BatchLine, read_batch
from fleet_knowledge.server_log.parsing.log_lines import read_log_lines

READY = "[2026-04-20 11:00:00] The server is fired up and ready to roll!"


def decode(
    rate: float,
    *,
    at: str = "11:00:05",
    rank: str = " TP0",
    running: int = 4,
    more: str = "cuda graph: True, ",
) -> str:
    return (
        f"[2026-04-20 {at}{rank}] Decode batch, #running-req: {running}, #token: 900, token usage: 0.10, {more}"
        f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
    )


def prefill(new: int, cached: int = 0, *, running: int = 4, rank: str = " TP0") -> str:
    return f"[2026-04-20 11:00:04{rank}] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.10, #running-req: {running}, #queue-req: 2, "


def told(*lines: str) -> dict[str, Any]:
    reader = LogReader()
    reader.feed("\n".join(lines).encode())
    return reader.finish().to_json()


def rate(*lines: str) -> float | None:
    value = told(*lines)["decode"]["total_gen_throughput"]
    return None if value is None else round(value, 6)


def batch(line: str) -> BatchLine | None:
    return read_batch(next(read_log_lines(line.encode())))


def test_ranks_of_one_tp_group_are_counted_once() -> None:
    assert rate(*(decode(400 + tp, rank=f" TP{tp}") for tp in range(4))) == 400


def test_stages_of_a_pipeline_are_counted_once_even_on_two_hosts() -> None:
    assert (
        rate("a-1 | " + decode(400, rank=" PP0 TP0"), "b-1 | " + decode(401, rank=" PP1 TP0"))
        == 400
    )


def test_two_servers_in_one_composition_are_added() -> None:
    assert rate("a-1 | " + decode(400), "b-1 | " + decode(300)) == 700


def test_a_rank_that_writes_less_often_does_not_lower_the_sum() -> None:
    lines = [decode(100, rank=" DP0 TP0") for _ in range(10)] + [decode(50, rank=" DP1 TP1")]
    assert rate(*lines) == 150


def test_a_decode_line_after_a_prefill_that_found_nothing_running_is_left_out() -> None:
    log = (decode(200), decode(210), prefill(500, running=0), decode(3), decode(190))
    document = told(prefill(10), *log)["decode"]
    assert (document["dropped_lines"], round(document["total_gen_throughput"], 6)) == (1, 200)


def test_a_slow_line_that_idle_time_does_not_explain_counts() -> None:
    assert rate(prefill(10), decode(200), decode(10), decode(210)) == 140


def test_idle_time_without_prefill_lines_is_told_from_silence_and_rate() -> None:
    lines = (decode(200), decode(210), decode(2, at="11:09:00"), decode(220, at="11:09:01"))
    assert rate(*lines) == 210


def test_lines_before_the_ready_line_are_the_servers_own() -> None:
    document = told(prefill(7), decode(4), READY, decode(300), decode(310))["decode"]
    assert (document["excluded_before_ready"], document["total_gen_throughput"]) == (2, 305)


def test_with_and_without_graphs_are_told_apart_by_decode_lines_alone() -> None:
    eager = "cuda graph: False, "
    document = told(
        prefill(10),
        decode(9, running=20),
        decode(8, running=80, more=eager),
        decode(8, running=64, more=eager),
        decode(9),
    )
    section = document["decode"]
    assert (
        section["cuda_graph_share"],
        section["first_bs_without_graph"],
        section["largest_bs_with_graph"],
    ) == (0.5, 64, 20)
    assert "eager_decode" in [warning["code"] for warning in document["warnings"]]


def test_a_cpu_server_without_graphs_is_not_warned_of() -> None:
    document = told(decode(9, more="cpu graph: False, "), decode(9, more="cpu graph: False, "))
    assert [warning["code"] for warning in document["warnings"]] == []


def test_the_hit_rate_is_of_all_prompt_tokens() -> None:
    assert told(prefill(10, 90), prefill(100, 0))["decode"]["cache_hit_rate"] == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("lengths", "draft_tokens", "definition"),
    [
        ([(2.17, 0.54), (1.95, 0.49), (1.80, 0.45)], 4, "len/draft_tokens"),
        ([(5.60, 0.66), (6.30, 0.76), (4.50, 0.50)], 8, "(len-1)/(draft_tokens-1)"),
        ([(2.0, 0.9), (3.0, 0.2)], None, None),
    ],
)
def test_draft_tokens_follow_from_length_and_rate(
    lengths: list[tuple[float, float]], draft_tokens: int | None, definition: str | None
) -> None:
    lines = [
        decode(100, more=f"accept len: {length:.2f}, accept rate: {share:.2f}, ")
        for length, share in lengths
    ]
    section = told(*lines)["decode"]
    assert (section["draft_tokens_inferred"], section["accept_rate_definition"]) == (
        draft_tokens,
        definition,
    )


def test_speculation_that_accepts_nothing_is_warned_of() -> None:
    document = told(*(decode(9, more="accept len: 1.00, accept rate: 0.00, ") for _ in range(3)))
    assert [warning["code"] for warning in document["warnings"]] == ["spec_ineffective"]


@pytest.mark.parametrize(
    "line",
    [
        "[2026-04-20 11:00:00 TP0] Decode batch, #running-req: 4, #token: 900, gen throughput (token/s): 17",
        "[2026-04-20 11:00:00 TP0] Decode batch, #running-req: 4, #token: 900, gen throughput (token/s): 1[2026-04-20 11:00:01 TP0] x",
        "[2026-04-20 11:00:00 TP0] Decode batch, #running-req: 4, gen throughput (token/s): nan, #queue-req: 0",
        "[2026-04-20 11:00:00 TP0] Decode batch, #running-req: 4, gen throughput (token/s): 1.2.3, #queue-req: 0",
    ],
)
def test_a_rate_that_is_torn_or_no_number_is_not_believed(line: str) -> None:
    read = batch(line)
    assert read is not None and "gen_throughput" not in read.values
    assert rate(line) is None


def test_prose_about_batches_is_no_batch() -> None:
    assert batch("[2026-04-20 11:00:00 TP0] The Decode batch, as it was, is over") is None


@pytest.mark.parametrize(
    "before",
    [
        "",
        "sgl-1  | ",
        "2026-04-20T11:00:00.123Z ",
        "(pid=3, ip=10.0.0.1) ",
        "\x1b[36msgl |\x1b[0m ",
    ],
)
def test_columns_read_a_line_as_words_do(before: str) -> None:
    dice = random.Random(7)
    for _ in range(50):
        line = dice.choice(
            (
                decode(
                    dice.uniform(0, 9000),
                    running=dice.randint(0, 99),
                    rank=f" DP{dice.randint(0, 9)} TP{dice.randint(0, 9)}",
                ),
                prefill(dice.randint(0, 9999), dice.randint(0, 9)),
            )
        )
        raw = (before + line).encode()
        layout = detect_layout(raw)
        assert layout is not None
        layout.raws.append(raw)
        layout.line_indices.append(0)
        [message] = read_log_lines(raw)
        read = read_batch(message)
        assert read is not None
        [fast], slow = layout.drain_columns(), columns_from_batch(read, message, 0)
        assert (fast.kind, fast.rank, fast.source, fast.graph, fast.columns) == (
            slow.kind,
            slow.rank,
            slow.source,
            slow.graph,
            slow.columns,
        )


def test_a_number_beyond_belief_is_no_number_however_often_it_comes() -> None:
    line = f"[2026-04-20 11:00:00 TP0] Decode batch, #running-req: 1{'0' * 20}, #token: 9, gen throughput (token/s): 5.00, #queue-req: 0"
    assert [told(line, line)["decode"] for _ in range(2)] == [{}, {}]
