"""Owns the promises of what a server's counters add to a run with speculation."""

from __future__ import annotations

import pytest

from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.results.server_counters import (
    CounterSnapshots,
    add_speculation,
    fetch_metrics,
    fetch_metrics_after,
)
from fleet_knowledge.sglang_metrics.accept_rate import DraftShape
from tests.fakes.scripted_server import Script, scripted_server

SHAPE = DraftShape(steps=3, draft_tokens=4)


def exposed(tokens: float, steps: float | None = None, **seconds: float) -> str:
    lines = [f'sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} {tokens}']
    lines += (
        [f'sglang:spec_verify_calls_total{{model_name="m"}} {steps}'] if steps is not None else []
    )
    lines += [
        f'sglang:forward_execution_seconds_total{{category="{name}",tp_rank="0"}} {value}'
        for name, value in seconds.items()
    ]
    lines += (
        [f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph",tp_rank="0"}} {steps}']
        if seconds
        else []
    )
    return "\n".join(lines) + "\n"


def summary(tokens: int = 300, **metrics: float) -> LoadReply:
    return LoadReply(
        {"output_tok_s": 50.0, **metrics},
        {"accept_length": metrics.get("accept_length")},
        {},
        1,
        0,
        tokens,
        6.0,
    )


def added(
    told: LoadReply, looks: CounterSnapshots, shape: DraftShape = SHAPE, time_scale: float = 1.0
) -> dict[str, float]:
    found = add_speculation(told, looks, shape, time_scale).metrics
    return {name: value for name, value in found.items() if name != "output_tok_s"}


def test_the_window_is_told_beside_the_requests_own_length() -> None:
    found = added(
        summary(accept_length=3.0, verify_steps=100.0),
        CounterSnapshots(exposed(1000, 500), exposed(1300, 605)),
    )
    assert found.pop("accept_length_window") == pytest.approx(300 / 105)
    assert found == pytest.approx({
        "accept_length": 3.0, "verify_steps": 100.0,
        "accept_rate_of_steps": 0.75, "accept_rate_of_tokens": 0.75, "accept_rate_of_drafts": 2 / 3,
    })  # fmt: skip


def test_the_window_stands_in_where_no_request_tells_its_verify_steps() -> None:
    told = add_speculation(
        summary(), CounterSnapshots(exposed(1000, 500), exposed(1300, 650)), SHAPE
    )
    assert (
        told.metrics["accept_length"],
        told.metrics["verify_steps"],
        told.facts["accept_length"],
    ) == (2.0, 150.0, 2.0)


@pytest.mark.parametrize(
    "looks",
    [
        CounterSnapshots(), CounterSnapshots(exposed(1000, 500), ""), CounterSnapshots(exposed(1000), exposed(1300)), CounterSnapshots(exposed(1000, 500), exposed(2000, 900)),
        CounterSnapshots(exposed(1000, 500), exposed(10, 5)),
    ],
    ids=["no metrics", "gone", "no counter of steps", "others' requests too", "restarted"],
)  # fmt: skip
def test_a_window_that_is_not_the_runs_alone_adds_nothing(looks: CounterSnapshots) -> None:
    told = add_speculation(summary(), looks, SHAPE)
    assert (told.metrics, told.facts["accept_length"]) == ({"output_tok_s": 50.0}, None)


def test_seconds_of_a_cycle_are_model_time() -> None:
    looks = CounterSnapshots(
        exposed(1000, 500, target_verify=1.0, eagle_draft=0.1),
        exposed(1300, 600, target_verify=3.0, eagle_draft=0.2),
    )
    found = added(summary(), looks, time_scale=10)
    assert (
        found["verify_s_per_cycle"],
        found["draft_s_per_cycle"],
        found["draft_extend_s_per_cycle"],
    ) == pytest.approx((0.2, 0.01, 0.0))


def test_a_run_without_an_answer_is_left_as_it_is() -> None:
    nothing = LoadReply({}, {"accept_length": None}, {}, 0, 3, 0, 0.0)
    assert (
        add_speculation(nothing, CounterSnapshots(exposed(1, 1), exposed(1, 1)), SHAPE) is nothing
    )


def answer(text: str, status: str = "200 OK") -> Script:
    return (f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode(), "close")


async def test_a_look_is_the_whole_text_or_nothing() -> None:
    async with scripted_server(
        answer("a 1\n"), answer("a 1"), answer("gone\n", "404 Not Found")
    ) as server:
        assert [await fetch_metrics(server.url) for _ in range(3)] == ["a 1\n", "", ""]
    assert await fetch_metrics("http://127.0.0.1:9") == ""


async def test_the_look_after_a_run_waits_until_the_server_has_counted_it() -> None:
    before = exposed(100, 50)
    async with scripted_server(answer(exposed(100, 50)), answer(exposed(400, 150))) as server:
        assert await fetch_metrics_after(server.url, before, 300) == exposed(400, 150)
    async with scripted_server(answer(exposed(150, 50))) as server:
        assert await fetch_metrics_after(server.url, before, 300) == exposed(150, 50)
        assert len(server.requests) == 5, "half a second, not for ever"
        assert await fetch_metrics_after(server.url, "", 300) == "", (
            "without a look before there is no window"
        )
