"""Owns the promises of the simulated server as a process: its speed over HTTP, its log, its faults
and its end.
"""

from __future__ import annotations

import http.client
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fleet_simulator.time_model import Speculation, TimingConfiguration, stream_tok_s
from tests.contract.http_client import Client
from tests.fakes.simulated_server import (
    START_LIMIT_S,
    TUNED,
    Running,
    free_port,
    simulated_server,
    speculative,
)

SCALE = 20.0
TOKENS = 500
TP8 = ["--tp-size", "8"]


def body(tokens: int, number: int) -> dict[str, Any]:
    prompt = " ".join(f"word{number}.{place}" for place in range(35))
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


def model_tok_s(running: Running, requests: int) -> float:
    """Median rate in model time of single streams, one after the other on one connection."""
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=60)
    rates = []
    try:
        for number in range(requests):
            start_s = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", json.dumps(body(TOKENS, number)))
            connection.getresponse().read()
            rates.append(TOKENS / (time.perf_counter() - start_s) / SCALE)
    finally:
        connection.close()
    return statistics.median(rates)


@pytest.mark.parametrize("env", [{}, TUNED], ids=["default", "tuned"])
@pytest.mark.parametrize("steps", [0, 5, 2])
def test_a_stream_over_http_is_as_fast_as_the_model(
    tmp_path: Path, steps: int, env: dict[str, str]
) -> None:
    speculation = Speculation("EAGLE3", steps, 1, steps + 1) if steps else None
    args = [*TP8, *(speculative(steps) if steps else [])]
    with simulated_server(tmp_path, *args, knobs={"time_scale": SCALE}, env=env) as running:
        assert model_tok_s(running, 5) == pytest.approx(
            stream_tok_s(TimingConfiguration(8, env, speculation)), rel=0.04
        )


def test_a_lost_variable_is_slow_and_missing_from_the_log(tmp_path: Path) -> None:
    knobs = {"time_scale": SCALE, "lost_env": list(TUNED)}
    with simulated_server(tmp_path, *TP8, knobs=knobs, env=TUNED) as running:
        assert model_tok_s(running, 3) == pytest.approx(
            stream_tok_s(TimingConfiguration(8)), rel=0.04
        )
        assert "NCCL_PROTO set by environment" not in running.text()


def test_launches_of_one_seed_differ_and_repeat(tmp_path: Path) -> None:
    def rate(launch: str) -> float:
        knobs = {"time_scale": SCALE, "seed": 3, "launch_noise": 0.3, "launch": launch}
        with simulated_server(tmp_path, *TP8, knobs=knobs) as running:
            return model_tok_s(running, 1)

    first, again, other = rate("t/1"), rate("t/1"), rate("t/2")
    assert again == pytest.approx(first, rel=0.04)
    assert abs(other / first - 1) > 0.08


def test_it_loads_nothing_that_takes_time_to_start() -> None:
    program = "import sys, fleet_simulator.server; print(*{name.partition('.')[0] for name in sys.modules})"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        set(told.stdout.split())
        & {"google", "grpc", "numpy", "psutil", "pyarrow", "pydantic", "ray"}
        == set()
    )


def test_the_log_reads_like_sglangs_and_says_that_it_is_simulated(tmp_path: Path) -> None:
    with simulated_server(
        tmp_path, *TP8, *speculative(5), knobs={"time_scale": 1000.0}, env=TUNED
    ) as running:
        Client(running.url).post("/v1/chat/completions", body(400, 1))
        lines = running.text().splitlines()
    assert "SIMULATED ENGINE" in lines[0]
    text = "\n".join(lines)
    parts = [
        "server_args={",
        "Load weight begin",
        "Load weight end",
        "Capture cuda graph end",
        "NCCL version",
        "Decode batch, #running",
    ]
    for part in parts:
        assert part in text, part
    for name, value in TUNED.items():
        assert f"NCCL INFO {name} set by environment to {value}" in text
    assert text.index("Load weight end") < text.index("The server is fired up and ready to roll!")


def test_everything_it_shows_says_that_it_is_simulated(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"time_scale": 7.0}) as running:
        info = Client(running.url).get_json("/server_info")
        metrics = Client(running.url).get("/metrics").body.decode()
    assert (info["simulated"], info["time_scale"], info["version"]) == (
        True,
        7.0,
        "0.5.23-simulated",
    )
    assert "simulated_engine_time_scale{} 7.0" in metrics


def test_term_ends_it_cleanly(tmp_path: Path) -> None:
    with simulated_server(tmp_path) as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=5) == 0


def test_a_server_told_to_ignore_term_stays_until_killed(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"ignore_term": True}) as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.health() == 200
        assert running.process.poll() is None
        running.process.kill()
        assert running.process.wait(timeout=5) == -signal.SIGKILL


def test_a_crash_is_a_kill_after_readiness(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"crash_after_s": 0.2}) as running:
        assert running.process.wait(timeout=10) == -signal.SIGKILL
        assert "ready to roll" in running.text()


def test_a_hanging_server_is_healthy_and_answers_nothing(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"hang": True}) as running:
        with pytest.raises(TimeoutError):
            Client(running.url, timeout_s=0.5).post("/v1/chat/completions", body(5, 1))
        assert running.health() == 200


def test_short_outputs_stop_at_half(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"time_scale": 1000.0, "short_outputs": True}) as running:
        answer = (
            Client(running.url)
            .post("/v1/chat/completions", {**body(40, 1), "stream": False})
            .json()
        )
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_wrong_identity_names_another_model_everywhere(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"wrong_identity": True}) as running:
        client = Client(running.url)
        paths = [client.get_json(path)["model_path"] for path in ("/model_info", "/server_info")]
        served = client.get_json("/v1/models")["data"][0]["id"]
    assert {*paths, served} == {"somebody/else"}


def test_two_chats_share_only_the_template_and_a_flush_forgets_even_that(tmp_path: Path) -> None:
    def cached(client: Client, number: int) -> int:
        answer = client.post(
            "/v1/chat/completions", {**body(2, number), "stream": False, "return_meta_info": True}
        ).json()
        return int(answer["choices"][0]["meta_info"]["cached_tokens"])

    with simulated_server(tmp_path, knobs={"time_scale": 1000.0}) as running:
        client = Client(running.url)
        counts = [cached(client, 1), cached(client, 2), cached(client, 2)]
        assert client.get("/flush_cache").status == 200
        counts.append(cached(client, 3))
    assert counts == [0, 4, 39, 0]


def test_a_client_that_leaves_frees_the_engine(tmp_path: Path) -> None:
    with simulated_server(tmp_path, "--max-running-requests", "1") as running:
        connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=10)
        connection.request("POST", "/v1/chat/completions", json.dumps(body(100_000, 1)))
        connection.getresponse().close()
        connection.close()
        answer = Client(running.url, timeout_s=10).post("/v1/chat/completions", body(2, 2))
    assert answer.status == 200


def test_a_server_whose_log_finds_no_room_serves_on(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / f"simulated-{port}.log").symlink_to("/dev/full")
    with simulated_server(
        tmp_path, healthy=False, port=port, knobs={"time_scale": SCALE}
    ) as running:
        deadline_s = time.monotonic() + START_LIMIT_S
        while running.health() != 200:
            assert time.monotonic() < deadline_s and running.process.poll() is None
            time.sleep(0.02)
        assert (
            Client(running.url, timeout_s=10).post("/v1/chat/completions", body(100, 1)).status
            == 200
        )


def test_a_taken_port_ends_the_second_server_with_a_reason(tmp_path: Path) -> None:
    with simulated_server(tmp_path) as first:
        port = str(first.port)
        with simulated_server(tmp_path, "--port", port, healthy=False) as second:
            assert second.process.wait(timeout=10) == 1
            assert "address already in use" in second.text()


def test_a_broken_command_line_ends_with_2(tmp_path: Path) -> None:
    args = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "many"]
    with simulated_server(tmp_path, *args, healthy=False) as running:
        assert running.process.wait(timeout=10) == 2
        assert "error: argument value" in running.text()
