"""Promises about a child of a server that escapes from it, on hosts with an agent in each mode."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet_protos.trial_types import Outcome, Phase
from tests.lab.deploying import OperatorMachine, agents_of
from tests.lab.fleet import PORT, LabFleet
from tests.lab.hosts import LabHost, wait_until
from tests.lab.lab import Lab

TOGETHER_S = 90.0
FOLDER = "/opt/escape"
NAME = "[kworker/u8:3]"
# Python runs this in each simulated server before the server's own code
ESCAPE = f"""
import os, signal, sys
if os.environ.get("BENCHFLEET_LAUNCH") and not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 1024)
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    signal.alarm(600)  # execve keeps it: a test that fails leaves nothing behind for long
    os.execve(sys.executable, ["{NAME}", "-S", "-c", program], {{}})
"""
JOB = f"""\
apiVersion: benchfleet/v1
kind: Job
name: escape
model: {{path: sim/kimi}}
engine:
  kind: simulated
  gpus: 8
  args: {{tp_size: 8}}
  env: {{PYTHONPATH: {FOLDER}}}
  stop_timeout: 1s
  simulation: {{time_scale: 20}}
workloads: {{single: {{concurrency: 1, prompts: builtin:chat, output_tokens: 50}}}}
measure: {{launches: 1, runs: {{min: RUNS, max: RUNS}}}}
"""
SETTINGS = f"""\
simulated_gpus = 8
[allow]
env = ["PYTHONPATH"]
mounts = ["{FOLDER}"]
"""
SHORT, LONG = JOB.replace("RUNS", "2"), JOB.replace("RUNS", "200")


def prepare(host: LabHost) -> None:
    """Every simulated server of the host leaves a child behind from now on."""
    folder = host.path(FOLDER)
    folder.mkdir(mode=0o755, parents=True)
    (folder / "sitecustomize.py").write_text(ESCAPE)


def escaped(host: LabHost) -> list[int]:
    """Outer process ids of children that escaped."""
    return [process.outer_pid for process in host.processes() if process.argv[:1] == (NAME,)]


def strange(host: LabHost) -> int:
    """A process that looks like an escaped child, and that no trial has started."""
    started = host.begin("strange", ["python3", "-S", "-c", "import signal; signal.pause()", NAME])
    return started.outer_pid


def test_an_escaped_child_is_ended_with_its_trial_also_by_an_agent_that_was_restarted(
    lab_fleet: LabFleet,
) -> None:
    host = lab_fleet.lab.host("gpu01", with_venv=True)
    prepare(host)
    [agent] = lab_fleet.add([host], SETTINGS)
    lab_fleet.controller.start()
    lab_fleet.await_connected()
    stranger = strange(host)
    detail = lab_fleet.wait_over(lab_fleet.submit(SHORT))
    assert [trial.outcome for trial in detail.trials] == [Outcome.OK]
    assert escaped(host) == []
    job_id = lab_fleet.submit(LONG)
    lab_fleet.wait_for_phase(job_id, Phase.MEASURING)
    [child] = escaped(host)
    agent.kill()
    assert escaped(host) == [child]
    agent.start()
    wait_until(lambda: child not in escaped(host), TOGETHER_S, "the new agent ends the child")
    assert Path(f"/proc/{stranger}").exists()


@contextmanager
def controller(desk: OperatorMachine) -> Iterator[None]:
    """`fleetctl up` on the desk's fleet file while inside."""
    process = desk.begin("up", "--fleet", "fleet.yaml")
    log = desk.folder / "begun.log"
    try:
        wait_until(
            lambda: b"1 of 1 hosts connected" in log.read_bytes() or process.poll() is not None,
            TOGETHER_S,
            "the host is connected",
        )
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


MODES: dict[str, tuple[Callable[[Lab], LabHost], str, str]] = {
    "system": (Lab.systemd_host, "root", ""),
    "user": (Lab.systemd_host, "bench", "install: {mode: user}, "),
    "daemon": (lambda lab: lab.host("gpu01"), "bench", "install: {mode: daemon}, "),
}


@pytest.mark.parametrize("mode", MODES)
def test_an_escaped_child_is_ended_with_its_trial_and_after_a_crash_of_a_deployed_agent(
    lab: Lab, tmp_path: Path, mode: str
) -> None:
    make, user, install = MODES[mode]
    host, desk = make(lab), OperatorMachine(tmp_path)
    prepare(host)
    desk.knows(host, user, f"{install}allow: {{env: [PYTHONPATH], mounts: [{FOLDER}]}}")
    deployed = desk.results("deploy")[host.name]
    assert deployed["state"] == "changed", deployed
    (tmp_path / "short.yaml").write_text(SHORT)
    (tmp_path / "long.yaml").write_text(LONG)
    with controller(desk):
        done = desk.fleetctl("submit", "short.yaml", "--watch", "--json")
        assert (done.returncode, escaped(host)) == (0, []), done.stderr
        assert json.loads(done.stdout)["rows"]
        assert desk.fleetctl("submit", "long.yaml").returncode == 0
        wait_until(lambda: escaped(host) != [], TOGETHER_S, "a server has left a child")
        [child] = escaped(host)
        [agent] = agents_of(host)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: child not in escaped(host), TOGETHER_S, "the child is ended")
        wait_until(lambda: host.listens(PORT), TOGETHER_S, "the agent is back")
