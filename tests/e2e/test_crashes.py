"""Each process of a running job is killed with SIGKILL in turn: the job ends, no finished run is
lost or doubled, nothing is left.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fleet_agent.host.processes import read_stat
from fleet_protos.events import Event, RunFinished, ServerLaunched
from tests.e2e.crash import JOB, Running, children
from tests.fakes.load_workers import is_sending, kill_while


@contextmanager
def run_to_the_end(folder: Path, job: str = JOB) -> Iterator[Running]:
    """A running job that is ended with the test, whatever the test did."""
    run = Running(folder, job)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            run.process.communicate(timeout=60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with run_to_the_end(tmp_path) as run:
        yield run


def kill_load_task(agent: int, port: int) -> None:
    """Kill the Ray worker that sends requests to the server at this port, while it does."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        if any(kill_while(pid, lambda pid: is_sending(pid, {port})) for pid in children(agent)):
            return
    raise AssertionError("no load task is running")


def nth_run(number: int):
    """True at the `number`th finished run."""
    seen = Counter()

    def wanted(event: Event) -> bool:
        seen["runs"] += isinstance(event.body, RunFinished)
        return seen["runs"] == number and isinstance(event.body, RunFinished)

    return wanted


def server_pid(events: list[Event]) -> int:
    return next(
        event.body.pid for event in reversed(events) if isinstance(event.body, ServerLaunched)
    )


def server_port(events: list[Event]) -> int:
    url = next(
        event.body.url for event in reversed(events) if isinstance(event.body, ServerLaunched)
    )
    return urlsplit(url).port or 0


def stored_runs(run: Running) -> Counter:
    with sqlite3.connect(f"file:{run.state}/controller/store.sqlite3?mode=ro", uri=True) as store:
        rows = store.execute("select trial_id, attempt, workload, run_index from runs").fetchall()
    return Counter(rows)


def check_the_end(run: Running, retried: bool) -> None:
    jobs = run.answer("ls")["jobs"]
    detail = run.answer("show", jobs[0]["id"])
    assert detail["state"] == "done", detail
    newest = {trial["id"]: trial for trial in detail["trials"]}
    assert len(newest) == 4
    assert all(trial["outcome"] == "ok" for trial in newest.values()), detail
    assert any(trial["attempt"] == 2 for trial in newest.values()) is retried, detail
    stored = stored_runs(run)
    assert set(stored.values()) == {1}
    for trial in newest.values():
        assert sum(key[:2] == (trial["id"], trial["attempt"]) for key in stored) == 3
    assert run.left_over() == []


def test_a_killed_server_costs_one_attempt_and_no_finished_run(running: Running) -> None:
    events = running.events(nth_run(2))
    os.kill(server_pid(events), signal.SIGKILL)
    output = running.finish()
    assert running.process.returncode == 0, output
    check_the_end(running, retried=True)
    first = events[0].trial_id
    assert {key for key in stored_runs(running) if key[:2] == (first, 1)} >= {
        (first, 1, "single", 1),
        (first, 1, "single", 2),
    }


def test_a_killed_agent_is_started_again_and_ends_the_server_it_left(running: Running) -> None:
    events = running.events(nth_run(2))
    server = server_pid(events)
    os.kill(running.agent_pid(), signal.SIGKILL)
    output = running.finish()
    assert running.process.returncode == 0, output
    stat = read_stat(server)
    assert stat is None or not stat.is_alive
    check_the_end(running, retried=True)


def test_a_killed_load_task_voids_the_attempt_and_not_the_server(tmp_path: Path) -> None:
    slow = JOB.replace(
        "time_scale: 20", "time_scale: 4"
    )  # a run takes over a second: the task is alive when it is looked for
    with run_to_the_end(tmp_path, slow) as running:
        events = running.events(nth_run(1))
        kill_load_task(running.agent_pid(), server_port(events))
        output = running.finish()
        assert running.process.returncode == 0, output
        check_the_end(running, retried=True)
        first = running.answer("show", running.answer("ls")["jobs"][0]["id"])["trials"]
        assert [trial["attempt"] for trial in first].count(2) == 1
        assert "load_failed" in output
        assert (
            "load task died: WorkerCrashedError" in output
        )  # and not Ray as a whole, which would fail the attempt as well


def test_a_killed_controller_goes_on_where_it_was(running: Running) -> None:
    events = running.events(nth_run(2))
    running.process.kill()
    running.finish()
    job = running.answer("ls")["jobs"][0]["id"]
    resumed = running.fleetctl("resume", job)
    output = running.finish(resumed)
    assert resumed.returncode == 0, output
    check_the_end(running, retried=False)
    assert events[0].trial_id in output or job in output


def test_ctrl_c_leaves_no_server_behind(running: Running) -> None:
    running.events(nth_run(1))
    running.process.send_signal(signal.SIGINT)
    output = running.finish()
    assert running.process.returncode == 1, output
    assert "Traceback" not in output
    assert running.left_over() == []
    assert running.answer("ls")["jobs"][0]["state"] in ("queued", "running")  # it can be resumed
