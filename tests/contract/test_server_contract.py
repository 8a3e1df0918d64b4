"""Owns the promises that every server keeps, simulated or real SGLang 0.5.23;
`BENCHFLEET_SGLANG_URL` adds a real one.
"""

from __future__ import annotations

import http.client
import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.http_client import Answer, Client, exchange
from tests.contract.servers import Server, assert_health_order
from tests.fakes.simulated_server import simulated_server

TOKENS = 24


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server.url)


def new_prompt() -> str:
    """Words that no server has seen before."""
    return f"{uuid.uuid4().hex} tell the story of a fleet of ships that measured the wind"


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {
        "model": "default",
        "messages": [message],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def native(prompt: str, **more: Any) -> dict[str, Any]:
    return {
        "text": prompt,
        "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True},
        **more,
    }


def streamed_chat(client: Client, **more: Any) -> list[dict[str, Any]]:
    options = {"include_usage": True}
    return ok(
        client.post(
            "/v1/chat/completions", chat(new_prompt(), stream=True, stream_options=options, **more)
        )
    ).events()


def ok(answer: Answer) -> Answer:
    assert answer.status == 200, answer.body
    return answer


def contents(events: list[dict[str, Any]]) -> list[str]:
    deltas = [choice.get("delta", {}) for event in events for choice in event["choices"]]
    return [delta["content"] for delta in deltas if delta.get("content")]


def test_a_starting_server_is_refused_then_unavailable_then_healthy(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"ready_after_s": 0.3}, healthy=False) as running:
        assert_health_order(running.wait_healthy())


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_a_ready_server_is_healthy(client: Client, path: str) -> None:
    assert client.get(path).status == 200


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_endpoint_names_the_model_it_was_started_with(
    client: Client, server: Server, path: str
) -> None:
    assert client.get_json(path)["model_path"] == server.model_path


def test_the_models_list_names_the_served_model(client: Client, server: Server) -> None:
    assert [card["id"] for card in client.get_json("/v1/models")["data"]] == [server.model_path]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_shows_arguments_version_and_state(
    client: Client, server: Server, path: str
) -> None:
    info = client.get_json(path)
    assert info["model_path"] == server.model_path
    assert info["version"].startswith("0.5.")
    assert info["port"] == urlsplit(server.url).port
    assert bool(info["speculative_algorithm"]) == server.speculation
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] > 0


def test_streamed_chat_counts_the_tokens_that_were_asked(client: Client) -> None:
    usages = [event["usage"] for event in streamed_chat(client) if event.get("usage")]
    assert [usage["completion_tokens"] for usage in usages] == [TOKENS]
    assert usages[0]["total_tokens"] == usages[0]["prompt_tokens"] + TOKENS


def test_streamed_chat_ends_by_length(client: Client) -> None:
    choices = [choice for event in streamed_chat(client) for choice in event["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]


def test_streamed_chat_is_an_event_stream(client: Client) -> None:
    answer = ok(client.post("/v1/chat/completions", chat(new_prompt(), stream=True)))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_streamed_chat_sends_no_usage_unless_asked(client: Client) -> None:
    events = ok(client.post("/v1/chat/completions", chat(new_prompt(), stream=True))).events()
    assert not any(event.get("usage") for event in events)


def test_streamed_chat_never_sends_more_chunks_with_text_than_tokens(client: Client) -> None:
    assert 1 <= len(contents(streamed_chat(client))) <= TOKENS


def test_the_accept_length_is_completion_tokens_over_verify_steps(
    client: Client, server: Server
) -> None:
    events = streamed_chat(client, return_spec_tokens_details=True)
    details = [event["sglext"]["spec_tokens_details"] for event in events if event.get("sglext")]
    if not server.speculation:
        assert details == []
        return
    assert details[0]["spec_accept_length"] == pytest.approx(TOKENS / details[0]["spec_verify_ct"])
    if details[0]["spec_accept_length"] > 1.5:
        assert len(contents(events)) < TOKENS, "several tokens a chunk"


def test_native_generation_tells_its_verify_steps(client: Client, server: Server) -> None:
    meta = ok(client.post("/generate", native(new_prompt()))).json()["meta_info"]
    assert ("spec_verify_ct" in meta) == server.speculation
    if server.speculation:
        assert meta["spec_accept_length"] == pytest.approx(
            meta["completion_tokens"] / meta["spec_verify_ct"]
        )
        rate = meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"]
        assert meta["spec_accept_rate"] == pytest.approx(rate)


def test_a_whole_chat_answer_counts_and_ends_as_asked(client: Client) -> None:
    answer = ok(
        client.post("/v1/chat/completions", chat(new_prompt(), return_meta_info=True))
    ).json()
    assert answer["usage"]["completion_tokens"] == TOKENS
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["meta_info"]["completion_tokens"] == TOKENS
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_meta_info_of_a_streamed_chat_is_refused(client: Client) -> None:
    assert (
        client.post(
            "/v1/chat/completions", chat(new_prompt(), stream=True, return_meta_info=True)
        ).status
        == 400
    )


def test_a_streamed_completion_counts_and_ends_as_asked(client: Client) -> None:
    body = {
        "model": "default",
        "prompt": new_prompt(),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    events = ok(
        client.post("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    ).events()
    assert [event["usage"]["completion_tokens"] for event in events if event.get("usage")] == [
        TOKENS
    ]
    reasons = [
        choice["finish_reason"]
        for event in events
        for choice in event["choices"]
        if choice.get("finish_reason")
    ]
    assert reasons == ["length"]


def test_a_native_stream_repeats_all_text_so_far_and_ends_exact(client: Client) -> None:
    events = ok(client.post("/generate", native(new_prompt(), stream=True))).events()
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == len(events[-1]["output_ids"]) == TOKENS
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": TOKENS}


def test_token_ids_are_taken_as_a_prompt(client: Client) -> None:
    body = {"input_ids": [5, 6, 7, 8], "sampling_params": native("")["sampling_params"]}
    answer = ok(client.post("/generate", body)).json()
    assert answer["meta_info"]["prompt_tokens"] == 4


def test_a_repeated_prompt_is_cached_and_a_flushed_one_is_not(client: Client) -> None:
    prompt = new_prompt()
    ok(client.post("/generate", native(prompt)))
    again = ok(client.post("/generate", native(prompt))).json()["meta_info"]
    assert 0 < again["cached_tokens"] < again["prompt_tokens"]
    ok(client.post("/flush_cache?timeout=10", b""))
    assert ok(client.post("/generate", native(prompt))).json()["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
def test_malformed_json_is_a_bad_request_with_an_error_object(client: Client, path: str) -> None:
    answer = client.post(path, b'{"text": ')
    assert answer.status == 400
    error = answer.json()
    assert (error["object"], error["type"], error["code"]) == ("error", "Bad Request", 400)
    assert error["message"]


def test_an_unknown_path_is_not_found(client: Client) -> None:
    answer = client.get("/no/such/path")
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})


def test_metrics_are_prometheus_text_with_sglangs_names(client: Client) -> None:
    ok(client.post("/generate", native(new_prompt())))
    families = {
        family.name
        for family in text_string_to_metric_families(ok(client.get("/metrics")).body.decode())
    }
    assert {
        "sglang:gen_throughput",
        "sglang:num_running_reqs",
        "sglang:generation_tokens",
        "sglang:spec_accept_length",
    } <= families


def test_one_connection_carries_many_requests(server: Server) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    try:
        stream = json.dumps(chat(new_prompt(), stream=True)).encode()
        statuses = [
            exchange(connection, "POST", "/v1/chat/completions", stream).status for _ in range(2)
        ]
        statuses.append(exchange(connection, "GET", "/model_info").status)
    finally:
        connection.close()
    assert statuses == [200, 200, 200]
