"""Owns the promises of one physical line: wrappers off, messages apart, stamp and rank read,
secrets and prompts never shown.
"""

from __future__ import annotations

import pytest

from fleet_knowledge.server_log.log_reader import LogReader
from fleet_knowledge.server_log.parsing.log_lines import Rank, elapsed_s, read_log_lines
from fleet_knowledge.server_log.parsing.redaction import LINE_LIMIT, redact

PLAIN = "[2026-04-20 11:00:00 DP1 TP3] Load weight begin. avail mem=9.00 GB"


@pytest.mark.parametrize(
    ("before", "source"),
    [
        ("", ""),
        ("\x1b[1;33m", ""),
        ("sgl-1  | ", "sgl-1"),
        ("\x1b[36msgl-1  |\x1b[0m ", "sgl-1"),
        ("(pid=4711, ip=10.0.0.3) ", "4711, ip=10.0.0.3"),
        ("\x1b[36m(SGLangEngine pid=4711)\x1b[0m ", "4711"),
        ("Apr 20 11:00:00 node-7 python3[221]: ", "node-7"),
        ("2026-04-20T11:00:00+0200 node-7 sglang[221]: ", "node-7"),
        ("2026-04-20T11:00:00.123456789Z stderr F ", ""),
        ("2026-04-20T11:00:00.123456789Z ", ""),
        ("[pod/sgl-0/server] ", "sgl-0/server"),
        ("[rank3]:", "3"),
        ("3: ", "3"),
    ],
)
def test_what_a_wrapper_puts_before_a_line_is_taken_off(before: str, source: str) -> None:
    [line] = read_log_lines((before + PLAIN + "\x1b[0m").encode())
    assert (line.text, line.stamp, line.rank, line.source) == (
        "Load weight begin. avail mem=9.00 GB", "2026-04-20 11:00:00", Rank(dp=1, tp=3), source,
    )  # fmt: skip


def test_a_line_of_docker_in_json_is_its_text() -> None:
    [line] = read_log_lines(
        b'{"log":"[2026-04-20 11:00:00 TP0] Memory pool end.\\n","stream":"stderr","time":"2026-04-20T09:00:00Z"}'
    )
    assert (line.text, line.stamp) == ("Memory pool end.", "2026-04-20 11:00:00")


def test_two_messages_in_one_line_are_two_and_the_first_may_be_torn() -> None:
    first, second = read_log_lines(
        b"[2026-04-20 11:00:00 TP0] Decode batch, #running-r[2026-04-20 11:00:01 TP1] Memory pool end."
    )
    assert (first.torn, first.rank, second.torn, second.rank, second.text) == (
        True,
        Rank(tp=0),
        False,
        Rank(tp=1),
        "Memory pool end.",
    )


def test_messages_of_nccl_that_ran_together_are_two() -> None:
    texts = [
        line.text
        for line in read_log_lines(
            b"m:1:1 [0] NCCL INFO comm 0x1 - Init COMPLETEm:2:2 [1] NCCL INFO Connected all rings"
        )
    ]
    assert texts == [
        "m:1:1 [0] NCCL INFO comm 0x1 - Init COMPLETE",
        "m:2:2 [1] NCCL INFO Connected all rings",
    ]


@pytest.mark.parametrize(
    ("label", "rank"),
    [
        ("DP0 PP1 TP2 EP2", Rank(0, 1, 2)),
        ("DP0 TP2 EP2 PP1", Rank(0, 1, 2)),
        ("TP11", Rank(tp=11)),
        ("EP3", None),
        ("", None),
    ],
)
def test_a_rank_is_read_in_any_order_of_its_parts(label: str, rank: Rank | None) -> None:
    assert Rank.parse(label) == rank


def test_indentation_is_kept_for_it_tells_quoted_source() -> None:
    assert [line.text for line in read_log_lines(b'svc-1 |     raise RuntimeError("x")')] == [
        '    raise RuntimeError("x")'
    ]


def test_a_clock_without_a_day_may_pass_midnight() -> None:
    assert elapsed_s(86_390.0, 10.0) == 20.0
    assert elapsed_s(63_900_000_000.0, 63_800_000_000.0) is None


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("token hf_AbCdEfGhIj in use", "AbCdEfGhIj"),
        ("--api-key TopSecret@123 --tp 2", "TopSecret"),
        ("api_key='TopSecret', tp_size=2", "TopSecret"),
        ("'api_key': 'Top, Secret', 'tp_size': 2", "Secret"),
        ("HF_TOKEN=abc.def-ghi", "abc.def"),
        ("Authorization: Bearer eyJhbGciOi", "eyJhbGci"),
        ("http://user:pa55word@proxy:3128", "pa55word"),
        ("password: hunter2", "hunter2"),
        ("Req(rid=1, input_ids=[9707, 11, 1879], output_ids=[271])", "9707"),
        ("origin_input_ids=(1, 2, 77", "77"),
        ("obj=GenerateReqInput(text='tell me about my illness', rid=1)", "illness"),
    ],
)
def test_secrets_and_prompts_are_not_shown(text: str, hidden: str) -> None:
    assert hidden not in redact(text)
    assert "…" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "api_key=None, tp_size=8",
        "#new-token: 2048, #cached-token: 0",
        "token usage: 0.41, max_total_num_tokens=480000",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_line_is_never_shown_longer_than_a_screens_few() -> None:
    assert len(redact("ValueError: " + "x" * 5000)) == LINE_LIMIT + 1


def test_a_bar_is_followed_while_a_log_grows() -> None:
    reader = LogReader()
    reader.feed(b"[2026-04-20 11:00:00 TP0] Load weight begin. avail mem=9.00 GB\n")
    assert (reader.phase, reader.progress) == ("load_weight", (0, 0))
    reader.feed(
        b"\rLoading safetensors checkpoint shards:  37% Completed | 61/163 [00:18<00:32,  3.11it/s]"
    )
    reader.feed(
        b"\rLoading safetensors checkpoint shards:  38% Completed | 62/163 [00:18<00:32,  3.11it/s]\r"
    )
    assert (reader.phase, reader.progress) == ("load_weight", (62, 163))
    reader.feed(
        b"Capturing batches (bs=8 avail_mem=9.10 GB):  10%|#         | 2/20 [00:04<00:30,  1.75s/it]\n"
    )
    assert (reader.phase, reader.progress) == ("capture_graph", (2, 20))
