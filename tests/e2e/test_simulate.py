"""`fleetctl simulate`: a simulated server alone, for any client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fakes.free_port import free_port

LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "fleet_controller.cli.main", "simulate"]


@contextmanager
def simulating(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command and its first line, which it prints when the server is ready."""
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)


def get_json(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_when_ready_and_ends_with_ctrl_c(ending: signal.Signals) -> None:
    port = free_port()
    knobs = '{"time_scale": 50, "ready_after_s": 0.2}'
    with simulating("--tp-size", "8", "--port", str(port), "--simulation", knobs) as (
        process,
        line,
    ):
        url = f"http://127.0.0.1:{port}"
        assert url in line
        assert "simulated" in line
        info = get_json(f"{url}/server_info")
        assert (info["simulated"], info["time_scale"], info["tp_size"]) == (True, 50, 8)
        process.send_signal(ending)
        assert process.wait(LIMIT_S) == 0
    with pytest.raises(OSError):
        get_json(f"{url}/server_info")


def test_ctrl_c_ends_even_a_server_that_ignores_it() -> None:
    knobs = '{"ignore_term": true}'
    with simulating("--port", str(free_port()), "--simulation", knobs) as (process, line):
        assert "simulated" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--simulation", "{"], "--simulation is not a JSON object"),
        (["--simulation", '{"speed": 2}'], "--simulation has no knob `speed`"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_what_it_cannot_read_is_refused(words: list[str], message: str) -> None:
    done = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_a_taken_port_is_refused() -> None:
    port = str(free_port())
    with simulating("--port", port) as (_, line):
        assert line
        done = subprocess.run(
            [*COMMAND, "--port", port], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port}" in done.stderr


def test_without_the_package_it_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['fleet_simulator'] = None;"
        " from fleet_controller.cli.main import main; sys.exit(main(['simulate']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ},
    )
    assert done.returncode == 2
    assert "benchfleet[simulator]" in done.stderr


def test_other_commands_still_refuse_unknown_options() -> None:
    argv = [sys.executable, "-m", "fleet_controller.cli.main", "ls", "--tp-size", "8"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "unrecognized arguments: --tp-size 8" in done.stderr
