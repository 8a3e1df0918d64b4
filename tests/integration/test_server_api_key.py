"""Promises of the API key that each launched server gets: only the agent can use the server, and
the key is in nothing that another user can read or that is kept.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_agent.core.engine import KEY_FILE
from fleet_controller.report.repro_script import repro_script
from fleet_protos import events as ev
from fleet_protos.trial_types import Outcome
from fleet_protos.v1 import agent_pb2
from tests.integration.test_agent import DirectClient, bodies, over, running_agent, trial


@pytest.fixture
def line(tmp_path: Path) -> Iterator[DirectClient]:
    with running_agent(tmp_path) as (line, _):
        yield line


def key_of(state: Path) -> tuple[Path, str]:
    """The key of the one server that runs, and its file."""
    (path,) = state.rglob(KEY_FILE)
    return path, json.loads(path.read_text())["api-key"]


def status(url: str, path: str, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def read_as_stranger(paths: list[str]) -> bytes:
    """What another user of this host can read; without the right to become one, what we can."""
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(["cat", *paths], capture_output=True, cwd="/", check=False, **user).stdout


def files_with(text: str, folder: Path) -> list[Path]:
    return [
        path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_only_the_agent_can_use_a_launched_server_and_nobody_can_read_its_key(
    line: DirectClient,
) -> None:
    spec = trial(tokens=20_000)
    line.start(spec)
    launched = bodies(line.events(spec, ev.ServerReady), ev.ServerLaunched)[0]
    path, key = key_of(line.state)
    assert len(key) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [status(launched.url, "/flush_cache", given) for given in ("", "f" * 64)] == [401, 401]
    assert status(launched.url, "/server_info", key) == 200
    assert status(launched.url, "/health") == 200
    seen = read_as_stranger(
        [
            f"/proc/{process}/{name}"
            for process in os.listdir("/proc")
            if process.isdecimal()
            for name in ("cmdline", "environ")
        ]
    )
    assert str(path).encode() in seen, "the command line is readable and names the file"
    assert key.encode() not in seen
    line.stub.CancelTrial(
        agent_pb2.CancelTrialRequest(trial_id=spec.trial_id, attempt=1, reason="seen"), timeout=10
    )
    assert over(line.events(spec)).outcome is Outcome.CANCELLED


def test_the_key_of_a_server_is_in_nothing_that_is_kept(line: DirectClient) -> None:
    spec = trial()
    line.start(spec)
    line.events(spec, ev.ServerReady)
    _, key = key_of(line.state)
    events = line.events(spec)
    assert over(events).outcome is Outcome.OK
    assert bodies(events, ev.RunFinished), "the load carries the key"
    assert key not in repr(events)
    assert files_with(key, line.state) == []
    assert list(line.state.rglob(KEY_FILE)) == []
    (proved,) = bodies(events, ev.ConfigurationProved)
    assert proved.effective_args["api_key"] == "…"
    log = next(line.state.rglob("server.log")).read_text()
    assert "'api_key': 'secret://" in log, "the server itself wrote it"
    assert "--config" not in repro_script(events, "a trial")


def test_each_launch_gets_another_key(line: DirectClient) -> None:
    keys = set()
    for _ in range(2):
        spec = trial()
        line.start(spec)
        line.events(spec, ev.ServerReady)
        keys.add(key_of(line.state)[1])
        line.events(spec)
    assert len(keys) == 2


def test_the_key_of_a_server_whose_agent_was_killed_is_removed(tmp_path: Path) -> None:
    spec = trial(tokens=20_000)
    with running_agent(tmp_path) as (line, process):
        line.start(spec)
        line.events(spec, ev.ServerReady)
        _, key = key_of(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with running_agent(tmp_path) as (line, _):
        assert over(line.events(spec)).outcome is Outcome.FAILED
    assert files_with(key, tmp_path) == []
