"""Promises of the commands that run servers, through the real program with the simulated engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

FLEETCTL = (sys.executable, "-m", "fleet_controller.cli.main")
LIMIT_S = 120
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: {name}
model: {{path: sim/kimi}}
engine:
  kind: simulated
  gpus: 8
  args: {{tp_size: 8}}
  stop_timeout: 5s
  simulation: {{time_scale: {scale}, seed: 3, launch_noise: 1%}}
factors:
  nccl:
    default: {{}}
    tuned: {{env: {{NCCL_PROTO: LL, NCCL_ALGO: Ring, HF_TOKEN: hf_secret}}}}
baseline: {{nccl: default}}
workloads:
  single: {{concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: {tokens}}}
measure: {{launches: 2, runs: {{min: 2, max: 2}}, warmup: 1}}
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A state folder and a job file of its own."""

    folder: Path
    name: str

    @classmethod
    def of(cls, folder: Path, scale: int = 50, tokens: int = 200) -> Bench:
        name = f"cli-{uuid.uuid4().hex[:6]}"
        (folder / "job.yaml").write_text(JOB.format(name=name, scale=scale, tokens=tokens))
        return cls(folder, name)

    @property
    def job(self) -> str:
        return str(self.folder / "job.yaml")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "BENCHFLEET_STATE": str(self.folder / "state")}
        return subprocess.Popen(
            (*FLEETCTL, *arguments),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=LIMIT_S)
        assert "Traceback" not in err, err
        return process.returncode, out, err

    def json(self, *arguments: str) -> dict:
        code, out, err = self.call(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def left(self) -> list[int]:
        """Processes that belong to this bench."""
        found = []
        for process in psutil.process_iter():
            try:
                text = " ".join((*process.cmdline(), *map("=".join, process.environ().items())))
            except psutil.Error:
                continue
            if process.pid != os.getpid() and (
                str(self.folder / "state") in text or self.name in text
            ):
                found.append(process.pid)
        return found


def until(process: subprocess.Popen[str], text: str) -> str:
    """Read standard error line by line up to the one that holds `text`; all of it."""
    assert process.stderr is not None
    read = ""
    for line in process.stderr:
        read += line
        if text in line:
            return read
    raise AssertionError(f"{text!r} never came:\n{read}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, tuple[int, str, str]]:
    """A bench whose job has run to its verdict, and how `run --json` ended."""
    bench = Bench.of(tmp_path_factory.mktemp("finished"))
    return bench, bench.call("run", bench.job, "--json")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench.of(tmp_path, scale=5)
    yield bench
    assert bench.left() == []


Finished = tuple[Bench, tuple[int, str, str]]


def test_run_goes_from_file_to_verdict_and_says_simulated(finished: Finished) -> None:
    bench, (code, out, err) = finished
    result = json.loads(out)
    assert code == 0, err
    assert (result["engine"], result["time_scale"], result["baseline"]) == (
        "simulated",
        50,
        "nccl=default",
    )
    assert [(row["variant"], row["metric"], row["launches"], row["runs"]) for row in result["rows"]] == [
        ("nccl=default", "output_tok_s", 2, 4), ("nccl=tuned", "output_tok_s", 2, 4),
        ("nccl=default", "tpot_s_mean", 2, 4), ("nccl=tuned", "tpot_s_mean", 2, 4),
    ]  # fmt: skip
    assert 1.1 < result["rows"][1]["ratio"] < 2  # about 1.41, on a machine that may be busy
    assert bench.left() == []


def test_run_tells_each_phase_and_run_on_lines_of_their_own(finished: Finished) -> None:
    _, (_, _, err) = finished
    for text in (
        ": launching\n",
        ": measuring\n",
        "run 2 finished, single ",
        "tok/s (simulated ×50)\n",
        ": ok\n",
        ": its data is in ",
    ):
        assert text in err
    assert "\033[" not in err


def test_show_and_ls_agree_that_it_is_done(finished: Finished) -> None:
    bench, _ = finished
    (job,) = bench.json("ls")["jobs"]
    detail = bench.json("show", job["id"])
    assert (job["state"], detail["state"], job["trials"], job["trials_over"]) == (
        "done",
        "done",
        4,
        4,
    )
    keys = [
        "id",
        "variant",
        "host",
        "block",
        "attempt",
        "phase",
        "outcome",
        "failure_class",
        "message",
        "progress",
        "nodes",
    ]
    assert all(list(trial) == keys for trial in detail["trials"])
    assert {
        (trial["phase"], trial["outcome"], trial["failure_class"]) for trial in detail["trials"]
    } == {("over", "ok", "")}


def test_plan_shows_the_order_that_was_run(finished: Finished) -> None:
    bench, _ = finished
    planned = [
        (trial["block"], trial["variant"]) for trial in bench.json("plan", bench.job)["trials"]
    ]
    (job,) = bench.json("ls")["jobs"]
    assert [
        (trial["block"], trial["variant"]) for trial in bench.json("show", job["id"])["trials"]
    ] == planned


def test_compare_and_report_give_the_same_rows(finished: Finished) -> None:
    bench, (_, out, _) = finished
    rows = json.loads(out)["rows"]
    assert bench.json("compare", bench.name)["rows"] == rows
    code, text, _ = bench.call("report", bench.name, "--format", "json")
    assert (code, json.loads(text)["rows"]) == (0, rows)
    assert "throughput" in bench.call("report", bench.name)[1]
    swapped = bench.json("compare", bench.name, "--baseline", "nccl=tuned")["rows"][1]
    assert swapped["ratio"] == pytest.approx(1 / rows[1]["ratio"])


def test_logs_show_the_servers_own_output(finished: Finished) -> None:
    bench, _ = finished
    trial = bench.json("show", bench.name)["trials"][0]["id"]
    code, log, _ = bench.call("logs", trial)
    assert code == 0
    assert "ready to roll" in log


def test_repro_starts_that_server_by_hand_and_prints_no_secret(finished: Finished) -> None:
    bench, _ = finished
    trial = next(
        trial["id"]
        for trial in bench.json("show", bench.name)["trials"]
        if trial["variant"] == "nccl=tuned"
    )
    _, script, _ = bench.call("repro", trial)
    assert "hf_secret" not in script
    url = next(word.rstrip(".") for word in script.split() if word.startswith("http://"))
    server = subprocess.Popen(
        ["sh", "-c", script],
        env={"HF_TOKEN": "mine"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert answers(url) == 200
    finally:
        server.terminate()
        server.wait(timeout=20)


def answers(url: str) -> int:
    deadline_s = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                return int(answer.status)
        except OSError:
            if time.monotonic() > deadline_s:
                raise


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_ctrl_c_stops_the_servers_and_keeps_the_job_resumable_next_to_others(
    tmp_path: Path, number: signal.Signals
) -> None:
    bench = Bench.of(tmp_path, scale=20)
    process = bench.start("run", bench.job)
    until(process, ": measuring")
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, bench.left()) == (1, [])
    (job,) = bench.json("ls")["jobs"]
    assert job["state"] == "running"
    assert err.count(f"`fleetctl resume {job['id']}` continues") == 2  # at once, and at the end
    trials = bench.json("show", job["id"])["trials"]
    assert {trial["phase"] for trial in trials} <= {"queued", "over"}
    if number is signal.SIGINT:
        run_another_job_and_resume(bench, job)


def run_another_job_and_resume(bench: Bench, job: dict) -> None:
    other = bench.folder / "other.yaml"
    other.write_text(Path(bench.job).read_text().replace("launches: 2", "launches: 1"))
    code, _, err = bench.call("run", str(other))
    assert code == 0, err
    assert f"job {job['id']} is unfinished too and waits" in err
    done, left = bench.json("ls")["jobs"]
    assert (done["state"], left["trials_over"]) == ("done", job["trials_over"])
    code, _, err = bench.call("resume", job["id"])
    assert code == 0, err
    assert bench.json("ls")["jobs"][1]["state"] == "done"
    assert bench.left() == []


def test_second_ctrl_c_leaves_at_once_and_says_what_is_left(bench: Bench) -> None:
    process = bench.start("run", bench.job)
    until(process, ": measuring")
    process.send_signal(signal.SIGINT)
    until(process, "interrupted")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    if "leaving at once" in err:  # else the first had ended it all before the second came
        assert "agent.log" in err
    assert bench.json("ls")["jobs"][0]["state"] in ("queued", "running")  # it can be resumed
    deadline_s = time.monotonic() + 30
    while bench.left() and time.monotonic() < deadline_s:
        time.sleep(0.1)  # the agent, which nobody waits for any more, ends by itself


def test_unfinished_job_is_offered_to_be_resumed_and_can_be_cancelled_at_rest(bench: Bench) -> None:
    process = bench.start("run", bench.job)
    until(process, ": measuring")
    process.kill()
    process.communicate(timeout=LIMIT_S)
    job = bench.json("ls")["jobs"][0]["id"]
    code, _, err = bench.call("run", bench.job)
    assert code == 2
    assert f"fleetctl resume {job}" in err
    assert bench.json("cancel", job)["job"] == job
    assert bench.json("ls")["jobs"][0]["state"] == "cancelled"
    code, _, err = bench.call("resume", job)
    assert code == 2
    assert "is already over: its state is cancelled" in err


def test_up_takes_jobs_from_other_terminals_until_ctrl_c(bench: Bench) -> None:
    up = bench.start("up", "--label", "gpu=h200")
    try:
        until(up, "fleetctl submit")
        (host,) = bench.json("hosts")["hosts"]
        assert (host["state"], host["labels"], host["simulated_gpus"]) == (
            "connected",
            {"gpu": "h200"},
            8,
        )
        assert bench.call("run", bench.job)[0] == 2  # one controller a state folder
        submitted = bench.json("submit", bench.job)
        watching = bench.start("watch", submitted["job"])
        until(watching, ": measuring")
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=LIMIT_S)
        assert f"job {submitted['job']} continues" in err
        detail = bench.json("show", submitted["job"])
        assert (detail["state"], detail["trials"][-1]["phase"]) == ("running", "queued")
        assert bench.json("cancel", submitted["job"])["trials_cancelled"] > 0
        code, out, _ = bench.call("watch", submitted["job"], "--json")
        assert (code, json.loads(out)["job"]) == (1, submitted["job"])
    finally:
        up.send_signal(signal.SIGINT)
        _, err = up.communicate(timeout=LIMIT_S)
    assert up.returncode == 0
    assert "no server is left" in err
