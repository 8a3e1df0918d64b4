"""A fleet whose controller loses its store in the middle of a job: nothing is lost once the store is
back.
"""

from __future__ import annotations

import pytest

from fleet_protos.trial_types import Outcome, Phase
from tests.lab.fleet import LabFleet
from tests.lab.hosts import wait_until

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: lab
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 4}}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 100}}
measure: {launches: 2, runs: {min: 3, max: 3}}
hosts: {placement: every_host}
"""
NOTICED_S = 10.0


@pytest.mark.parametrize("what", ["store.sqlite3", "store.sqlite3.lock", "."])
def test_a_controller_that_loses_its_store_ends_and_no_run_is_lost_when_the_store_is_back(
    lab_fleet: LabFleet, what: str
) -> None:
    lab_fleet.up(2)
    job_id = lab_fleet.submit(JOB)
    lab_fleet.wait_for_phase(job_id, Phase.MEASURING)
    moved, place = lab_fleet.folder / "moved", lab_fleet.folder / "controller" / what
    place.rename(moved)
    wait_until(lambda: not lab_fleet.controller.alive, NOTICED_S, "the controller ends")
    assert lab_fleet.controller.process is not None
    assert lab_fleet.controller.process.returncode == 2
    log = lab_fleet.controller.log()
    assert "the store is no longer the one that this controller opened" in log.splitlines()[-2]
    assert "Traceback" not in log
    if place.exists():  # the log and socket of the controller that ended
        place.rename(lab_fleet.folder / "left")
    moved.rename(place)
    lab_fleet.controller.start()
    detail = lab_fleet.wait_over(job_id)
    assert {trial.outcome for trial in detail.trials} == {Outcome.OK}
    assert {trial.attempt for trial in detail.trials} == {1}
    lab_fleet.await_runs(job_id)
    lab_fleet.await_no_orphans()
