"""Owns the promises of the simulated engine's HTTP, command line and requests, none of which opens
a socket.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_simulator import request_parsing, server_args
from fleet_simulator.http_server import BadRequest, http_chunk, parse_head, read_body
from fleet_simulator.server import parse_start
from fleet_simulator.token_text import RING_TOKENS, TokenRing, ring_position

EAGLE = {
    "model_path": "m",
    "speculative_algorithm": "EAGLE3",
    "speculative_eagle_topk": 1,
    "speculative_num_steps": 5,
}


def test_a_head_is_read_with_lower_case_names() -> None:
    head = b"POST /generate?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 12"
    assert parse_head(head) == ("POST", "/generate?x=1", {"host": "a", "content-length": "12"})


@pytest.mark.parametrize("head", [b"nonsense", b"GET / FTP/1.0", b"GET / HTTP/1.1\r\nno colon"])
def test_what_is_not_http_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head)


@pytest.mark.parametrize("cut", range(1, 26))
def test_a_chunked_body_is_taken_only_when_whole(cut: int) -> None:
    body = b"4\r\nabcd\r\n6;x=y\r\nefghij\r\n0\r\n\r\n"
    assert read_body(bytearray(body[:cut]), 0, {"transfer-encoding": "chunked"}) is None
    assert read_body(bytearray(body + b"GET"), 0, {"transfer-encoding": "chunked"}) == (
        b"abcdefghij",
        len(body),
    )


@pytest.mark.parametrize("length", ["-1", "many", str(1 << 40)])
def test_a_bad_content_length_is_refused(length: str) -> None:
    with pytest.raises(BadRequest):
        read_body(bytearray(), 0, {"content-length": length})


def test_a_frame_is_one_http_chunk() -> None:
    assert http_chunk(b"hello hello hello") == b"11\r\nhello hello hello\r\n"


def test_options_are_read_under_sglangs_names_and_types() -> None:
    argv = [
        "--tp",
        "8",
        "--model-path",
        "a/b",
        "--trust-remote-code",
        "--mem-fraction-static=0.9",
        "--cuda-graph-bs",
        "1",
        "2",
    ]
    assert server_args.parse(argv) == {
        "tp_size": 8,
        "model_path": "a/b",
        "trust_remote_code": True,
        "mem_fraction_static": 0.9,
        "cuda_graph_bs": [1, 2],
    }


def test_a_word_without_an_option_is_refused() -> None:
    with pytest.raises(ValueError, match="unrecognized arguments: stray"):
        server_args.parse(["stray"])


def test_a_chain_of_drafts_forces_the_draft_tokens() -> None:
    args, warnings = server_args.resolve({**EAGLE, "speculative_num_draft_tokens": 16})
    assert args["speculative_num_draft_tokens"] == 6
    assert any("speculative_num_steps + 1" in warning for warning in warnings)


def test_a_tree_of_drafts_keeps_the_draft_tokens() -> None:
    args, _ = server_args.resolve(
        {**EAGLE, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16}
    )
    assert args["speculative_num_draft_tokens"] == 16


@pytest.mark.parametrize(("asked", "shown"), [({}, 48), ({"max_running_requests": 200}, 200)])
def test_speculation_caps_running_requests_unless_told_otherwise(
    asked: dict[str, int], shown: int
) -> None:
    args, _ = server_args.resolve({**EAGLE, **asked})
    assert args["max_running_requests"] == shown


def test_a_plain_server_shows_its_arguments_as_given() -> None:
    given = {"model_path": "m", "tp_size": 8, "mem_fraction_static": 0.9, "something_new": "x"}
    args, warnings = server_args.resolve(given)
    assert {name: args[name] for name in given} == given
    assert warnings == []


def test_eagle_with_an_eagle3_draft_accepts_nothing() -> None:
    args, _ = server_args.resolve(
        {
            **EAGLE,
            "speculative_algorithm": "EAGLE",
            "speculative_draft_model_path": "x/kimi-EAGLE-3",
        }
    )
    speculation = server_args.speculation(args)
    assert speculation is not None
    assert not speculation.matches_draft


def test_a_lost_variable_is_not_seen() -> None:
    argv = ["--model-path", "m", "--simulation", json.dumps({"lost_env": ["NCCL_PROTO"]})]
    start = parse_start(argv, {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "HOME": "/"})
    assert start.nccl == {"NCCL_ALGO": "Ring", "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--model-path", "m", "--simulation", "{"],
        ["--model-path", "m", "--simulation", '{"time_scale": 0}'],
        ["--model-path", "m", "--simulation", '{"speed": 1}'],
        [
            "--model-path",
            "m",
            "--speculative-algorithm",
            "EAGLE3",
            "--speculative-num-steps",
            "many",
        ],
    ],
)
def test_a_command_line_that_means_nothing_is_a_value_error(argv: list[str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_start(argv, {})


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (request_parsing.parse_generate, {}),
        (request_parsing.parse_generate, {"text": "a", "input_ids": [1]}),
        (request_parsing.parse_generate, {"text": ["a", "b"]}),
        (request_parsing.parse_generate, {"text": "a", "sampling_params": {"max_new_tokens": 0}}),
        (request_parsing.parse_chat, {"messages": []}),
        (request_parsing.parse_chat, {"messages": ["hello"]}),
        (
            request_parsing.parse_chat,
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": "ten"},
        ),
        (request_parsing.parse_completion, {"prompt": None}),
        (request_parsing.parse_completion, {"prompt": "a", "n": 2}),
    ],
)
def test_a_request_that_means_nothing_is_refused(read: Any, body: dict[str, Any]) -> None:
    with pytest.raises(request_parsing.RequestRejected):
        read(body)


def chat_of(content: Any, **more: Any) -> request_parsing.GenerationRequest:
    return request_parsing.parse_chat({"messages": [{"role": "user", "content": content}], **more})


def test_chats_share_exactly_the_template() -> None:
    prompts = [chat_of(text).prompt for text in ("one two", "three")]
    shared = next(
        place for place, pair in enumerate(zip(*prompts, strict=False)) if pair[0] != pair[1]
    )
    assert shared == 4


def test_content_parts_read_as_their_text() -> None:
    assert chat_of([{"type": "text", "text": "one two"}]).prompt == chat_of("one two").prompt


def test_a_limit_holds_exactly_only_with_ignore_eos() -> None:
    exact, open_end = chat_of("a", max_tokens=5000, ignore_eos=True), chat_of("a", max_tokens=5000)
    assert request_parsing.choose_output_tokens(exact, 7, short=False) == (5000, False)
    assert request_parsing.choose_output_tokens(open_end, 7, short=False) == (207, True)


def test_short_outputs_stop_at_half() -> None:
    assert request_parsing.choose_output_tokens(
        chat_of("a", max_tokens=500, ignore_eos=True), 7, short=True
    ) == (250, True)


def test_the_same_prompt_gets_the_same_words_and_another_prompt_others() -> None:
    words = TokenRing()
    first, second = ring_position(("a", "b")), ring_position(("a", "c"))
    assert (
        words.text(first, 20) == words.text(ring_position(("a", "b")), 20) != words.text(second, 20)
    )


def test_words_and_ids_count_their_tokens_even_around_the_ring() -> None:
    words = TokenRing()
    for first, count in ((0, 1), (RING_TOKENS - 3, 10), (5, 2 * RING_TOKENS + 7)):
        assert len(words.text(first, count).split()) == count
        assert len(words.ids(first, count).split(b",")) == count


def test_text_does_not_repeat_itself() -> None:
    assert len(set(TokenRing().text(100, 500).split())) == 500
