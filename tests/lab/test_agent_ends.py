"""Promises about an agent that ends under a running trial: killed for its memory, or upgraded."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from fleet_protos.trial_types import Outcome, Phase
from tests.lab.deploying import OperatorMachine, agents_of
from tests.lab.fleet import PORT, LabFleet, servers_of
from tests.lab.hosts import wait_until
from tests.lab.lab import Lab

TOGETHER_S = 120.0
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 64 << 10
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: ends
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 100}}
measure: {launches: 1, runs: {min: 12, max: 12}}
"""


def test_a_trial_whose_agent_the_kernel_kills_for_its_memory_is_ended_and_repeated(
    lab_fleet: LabFleet,
) -> None:
    lab_fleet.up(1)
    [agent] = lab_fleet.agents.values()
    assert agent.started is not None
    job_id = lab_fleet.submit(JOB)
    lab_fleet.wait_for_phase(job_id, Phase.MEASURING)
    group = MEMORY / f"bf-{lab_fleet.folder.name}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(agent.started.outer_pid))
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
        with ExitStack() as stack:  # connections cost memory, of which the agent gets no more
            while agent.alive:
                with suppress(OSError):
                    stack.enter_context(socket.create_connection((agent.host.address, PORT), 5))
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 10.0, "the group is empty")
        group.rmdir()
    assert len(servers_of(agent.host)) > 0
    agent.start()
    [trial] = lab_fleet.wait_over(job_id).trials
    assert (trial.outcome, trial.attempt) == (Outcome.OK, 2)
    lab_fleet.await_runs(job_id)
    lab_fleet.await_no_orphans()
    assert lab_fleet.servers() == []


def test_an_upgrade_under_a_running_trial_is_refused_and_if_forced_the_trial_is_repeated(
    lab: Lab, tmp_path: Path
) -> None:
    host, desk = lab.host("gpu01"), OperatorMachine(tmp_path)
    desk.knows(host)
    assert desk.results("deploy")[host.name]["state"] == "changed"
    (tmp_path / "job.yaml").write_text(JOB)
    controller = desk.begin("up", "--fleet", "fleet.yaml")
    try:
        log = tmp_path / "begun.log"
        connected = b"1 of 1 hosts connected"
        wait_until(lambda: connected in log.read_bytes(), TOGETHER_S, "the host is connected")
        job = desk.fleetctl("submit", "job.yaml").stdout.split()[1].rstrip(":")
        wait_until(lambda: servers_of(host) != [], TOGETHER_S, "a server runs")
        [before] = agents_of(host)
        desk.knows(host, more="labels: {changed: now}")
        refused = desk.results("deploy")[host.name]
        assert (refused["state"], "--force" in refused["hint"]) == ("failed", True)
        assert agents_of(host) == [before]
        assert desk.results("deploy", "--force")[host.name]["state"] == "changed"
        assert agents_of(host) != [before]
        watched = desk.fleetctl("watch", job)
        assert watched.returncode == 0, watched.stdout + watched.stderr
        shown = desk.fleetctl("show", job)
        assert "ok" in shown.stdout, shown.stdout
        wait_until(lambda: servers_of(host) == [], TOGETHER_S, "no server is left")
        print(watched.stdout, shown.stdout)
    finally:
        controller.send_signal(signal.SIGINT)
        controller.wait(60)
