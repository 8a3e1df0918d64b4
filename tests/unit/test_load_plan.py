"""Promises of prompts, bodies and shares: the seed decides all, equal across variants, different
across runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.client.request_body import LoadTarget, completion_body, http_request
from fleet_agent.load.messages import RUN, LoadRequest, read_request, request_line
from fleet_agent.load.shard_planning import plan_shards
from fleet_agent.load.workers.local_workers import LocalWorkers
from fleet_agent.load.workload.prompts import prompt_set
from fleet_protos.trial_types import Lengths, Part, SharedPrefix, Slo, Stage, Workload

SETS = ["builtin:chat", "builtin:code", "builtin:reasoning", "builtin:summarise"]
SHARES = LocalWorkers(None, Path()).shard_count
POISSON = Workload(
    "open",
    rate_per_s=50,
    duration_s=40,
    arrivals="poisson",
    prompts="builtin:chat",
    output_tokens=9,
)


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_at_least_forty_prompts_no_two_alike(name: str) -> None:
    texts = prompt_set(name)
    assert len(texts) >= 40
    assert len(set(texts)) == len(texts)
    assert all("{" not in text and len(text) > 80 for text in texts)


def test_an_unknown_set_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        ValueError,
        match="the prompts 'builtin:chatt' are unknown: use one of builtin:chat, builtin:code",
    ):
        prompt_set("builtin:chatt")


def test_an_sglang_server_is_held_to_the_length_and_asked_for_its_own_counts() -> None:
    content = completion_body(LoadTarget("http://h", "m"), "chat", "hi", 500)
    assert content["messages"] == [{"role": "user", "content": "hi"}]
    expected: dict[str, Any] = {
        "max_tokens": 500, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        "return_spec_tokens_details": True, "return_cached_tokens_details": True,
    }  # fmt: skip
    assert content.items() >= expected.items()
    assert "return_meta_info" not in content  # SGLang 0.5.23 answers 400 to it in a stream


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_any_other_server_gets_standard_fields_only(api: str) -> None:
    content = completion_body(LoadTarget("http://h", "m", sglang=False), api, "hi", 5)
    assert set(content) <= {
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
    }


def test_generate_asks_for_exactly_the_length() -> None:
    content = completion_body(LoadTarget("http://h"), "generate", "hi", 5)
    assert content == {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }


def test_a_request_keeps_the_base_path_and_the_token_and_counts_bytes_not_characters() -> None:
    request = http_request(
        LoadTarget("http://[::1]:80/base", token="t0"), "/generate", {"text": "é"}
    )
    head, _, content = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/generate HTTP/1.1\r\nHost: [::1]:80\r\n")
    assert b"Authorization: Bearer t0" in head
    assert f"Content-Length: {len(content)}".encode() in head
    assert json.loads(content) == {"text": "é"}


def test_a_request_for_load_comes_back_from_its_line_as_it_was() -> None:
    workload = Workload(
        "w",
        stages=(Stage(0, 8, 5),),
        arrivals="gamma",
        burstiness=2,
        output=Lengths("uniform", 1, 9),
        slo=Slo(1, 0.1),
    )
    workload = replace(
        workload,
        mix=(Part(2, "file:x", output=Lengths("uniform", 1, 5), prefix=SharedPrefix(1, 2)),),
        trace="y",
        speed=2,
    )
    request = LoadRequest("http://h", workload, seed=3, metadata={"job": "j"}, files={"y": "z"})
    assert read_request(json.loads(request_line(4, RUN, request))) == request


@given(st.integers(1, 70), st.integers(1, 300))
def test_shares_cover_every_request_and_every_user_once(concurrency: int, requests: int) -> None:
    workload = Workload(
        "w", concurrency=concurrency, requests=requests, prompts="builtin:chat", output_tokens=1
    )
    plans = plan_shards(
        LoadRequest("http://h", workload), LoadTarget("http://h"), warm=False, shard_count=SHARES
    )
    assert sorted(number for plan in plans for number in plan.numbers) == list(range(requests))
    assert sum(plan.concurrency for plan in plans) == min(concurrency, requests)
    assert all(plan.concurrency >= 1 for plan in plans)


def test_one_user_is_one_share() -> None:
    workload = Workload("w", concurrency=1, requests=9, prompts="builtin:chat", output_tokens=1)
    assert (
        len(
            plan_shards(
                LoadRequest("http://h", workload),
                LoadTarget("http://h"),
                warm=False,
                shard_count=SHARES,
            )
        )
        == 1
    )


def test_arrivals_of_a_simulated_server_come_faster_by_its_time_scale() -> None:
    plain, fast = (
        plan_shards(
            LoadRequest("http://h", POISSON, time_scale=scale),
            LoadTarget("http://h"),
            warm=False,
            shard_count=SHARES,
        )[0]
        for scale in (1.0, 10.0)
    )
    assert fast.offsets_s == pytest.approx([offset / 10 for offset in plain.offsets_s])
    assert fast.timeout_s == plain.timeout_s
