"""The promise of secrets, through the real program: only the server gets one, and of all that is
kept only the secrets file holds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

FLEETCTL = (sys.executable, "-m", "fleet_controller.cli.main")
LIMIT_S = 240
VALUE = 'hf_0f9e8d7c"&\\ tail-of-the-secret'
# Stands in for a Python with SGLang: it prints its whole environment into its log, as some
# launchers do, then serves or fails.
ECHO = """#!/bin/sh
env
env | grep '^HF_TOKEN=' > {seen}
shift 2
[ "$FAILS" = yes ] && {{ echo "RuntimeError: the hub refused the token $HF_TOKEN"; exit 3; }}
exec {python} -m fleet_simulator.server "$@"
"""
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: {name}
model: {{path: {folder}/model}}
engine:
  kind: sglang
  python: {folder}/python
  gpus: 0
  args: {{device: cpu, load_format: dummy}}
  env: {{HF_TOKEN: "secret://hub", SGLANG_USE_CPU_ENGINE: "1"}}
factors:
  end:
    well: {{}}
    badly: {{env: {{FAILS: "yes"}}}}
workloads:
  single: {{concurrency: 1, output_tokens: 8}}
measure: {{launches: 1, runs: {{min: 1, max: 1}}}}
"""


@dataclass(frozen=True, slots=True)
class Done:
    """A job that is over; `said`: all that was printed about it."""

    folder: Path
    said: str

    @property
    def state(self) -> Path:
        return self.folder / "state"


def fleetctl(folder: Path, *arguments: str) -> str:
    env = {
        **os.environ,
        "BENCHFLEET_STATE": str(folder / "state"),
        "BENCHFLEET_SECRETS": str(folder / "secrets"),
    }
    done = subprocess.run(
        (*FLEETCTL, *arguments),
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "python").write_text(ECHO.format(seen=folder / "seen", python=sys.executable))
    (folder / "python").chmod(0o755)
    (folder / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / "model" / name).write_text("{}")
    (folder / "secrets").touch(0o600)
    (folder / "secrets").write_text(f"hub={VALUE}\n")
    (folder / "job.yaml").write_text(
        JOB.format(name=f"secret-{uuid.uuid4().hex[:6]}", folder=folder)
    )
    said = [fleetctl(folder, "run", str(folder / "job.yaml")), fleetctl(folder, "ls")]
    for trial in sorted(path.name for path in (folder / "state/agent/artifacts").iterdir()):
        said += [fleetctl(folder, "logs", trial), fleetctl(folder, "repro", trial)]
    return Done(folder, "\n".join(said))


def test_the_server_gets_the_secret_itself(done: Done) -> None:
    assert (done.folder / "seen").read_text() == f"HF_TOKEN={VALUE}\n"


def test_no_file_of_agent_and_controller_holds_it(done: Done) -> None:
    files = [path for path in done.state.rglob("*") if path.is_file()]
    assert {"events.jsonl", "server.log", "server-log.txt", "store.sqlite3"} <= {
        path.name for path in files
    }
    marks = [VALUE.encode(), b"hf_0f9e8d7c", b"tail-of-the-secret"]
    assert [str(path) for path in files if any(mark in path.read_bytes() for mark in marks)] == []


def test_its_reference_stands_where_it_was(done: Done) -> None:
    logs = sorted(done.state.rglob("agent/artifacts/*/1/server.log"))
    assert [("HF_TOKEN=secret://hub" in log.read_text()) for log in logs] == [True, True]
    assert "the hub refused the token secret://hub" in done.said


def test_nothing_that_is_printed_holds_it(done: Done) -> None:
    assert "hf_0f9e8d7c" not in done.said
    assert 'HF_TOKEN="${hub:?' in done.said


def test_a_missing_secret_ends_the_trial_before_a_server_is_started_and_says_where_to_put_it(
    done: Done, tmp_path: Path
) -> None:
    shutil.copy(done.folder / "job.yaml", tmp_path)  # its model and Python stay where they are
    (tmp_path / "secrets").touch(0o640)
    said = fleetctl(tmp_path, "run", str(tmp_path / "job.yaml"))
    assert f"the secrets file {tmp_path}/secrets has mode 0640" in said
    assert f"chmod 600 {tmp_path}/secrets" in said
