"""Promises of a fleet on lab hosts: real agents and a real controller run a job over mutual TLS,
and what must hold of it can fail.
"""

from __future__ import annotations

from fleet_protos.trial_types import Outcome, Phase
from tests.lab.fleet import LabFleet, servers_of

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: lab
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 1, runs: {min: 2, max: 2}}
hosts: {placement: every_host}
"""


def test_a_job_runs_on_agents_in_hosts_over_a_crash_of_the_controller_and_nothing_is_left_of_it(
    lab_fleet: LabFleet,
) -> None:
    lab_fleet.up(2)
    job_id = lab_fleet.submit(JOB)
    trial = lab_fleet.wait_for_phase(job_id, Phase.MEASURING)
    assert len(servers_of(lab_fleet.agents[trial.host].host)) > 0
    lab_fleet.controller.kill()
    lab_fleet.controller.start()
    detail = lab_fleet.wait_over(job_id)
    assert [(trial.host, trial.outcome) for trial in detail.trials] == [
        ("gpu01", Outcome.OK),
        ("gpu02", Outcome.OK),
    ]
    lab_fleet.await_runs(job_id)
    lab_fleet.await_no_orphans()
    assert lab_fleet.servers() == []
    run = lab_fleet.results(job_id).runs[0].run
    assert run.artifact
    (lab_fleet.folder / "controller/artifacts" / run.artifact.name).write_bytes(b"other")
    assert "another digest" in " ".join(lab_fleet.trouble_with_runs(job_id))


def test_what_an_agent_left_behind_is_told_as_orphans(lab_fleet: LabFleet) -> None:
    host = lab_fleet.lab.host("gpu01", with_venv=True)
    [agent] = lab_fleet.add([host])
    assert lab_fleet.orphans() == []
    stranger = host.begin("stranger", ["sleep", "60"])
    assert [line.partition(": ")[0] for line in lab_fleet.orphans()] == ["gpu01"]
    stranger.kill()
    stranger.wait()
    agent.kill()
    agent.start()
    assert agent.alive and lab_fleet.orphans() == []
