"""Results are read as the job was understood at its submit, whatever today's rules say of its
text.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.cli.job_comparison import VerdictOptions, compare_job
from fleet_controller.core.job import Job
from fleet_controller.job_file.job_loader import load_job, load_job_file
from fleet_controller.job_file.resolved_job import read_stored_job, resolved_json
from fleet_controller.jobs.queries import ReadOnlyController
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_controller.yaml.findings import JobRejected
from fleet_protos import events as ev
from fleet_protos.trial_types import EngineKind, EngineSpec, Outcome, Phase, RunResult, TrialSpec
from tests.fakes.agent import FakeAgent
from tests.fakes.looks import eventually

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: tuned}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 2, margin: 10%}
"""
# Rules that "a newer version" has: today's lint refuses these texts, and an earlier one did not.
REFUSED = {
    "a rule of lint": JOB.replace("tp_size: 8", "tp_size: 8, port: 5"),
    "a new limit": JOB.replace("margin: 10%", "margin: 900%"),
    "a key that was removed": JOB.replace("measure: {", "measure: {rounds: 3, "),
}


def stored(folder: Path, text: str, resolved: str) -> ReadOnlyController:
    """A store with a finished job of this text: two launches of each variant."""
    store = Store.open(str(folder / "store.sqlite3"))
    specs = [
        TrialSpec(
            f"job-1-b{block}-v{index}", 1, "job-1", "job", f"nccl={level}", {}, block, "here",
            EngineSpec(EngineKind.SIMULATED),
        )
        for block in (1, 2)
        for index, level in enumerate(("default", "tuned"), start=1)
    ]  # fmt: skip
    row = JobRow("job-1", "job", text, "job.yaml", 5, "simulated", 20.0, 60.0, resolved=resolved)
    store.add_job(row, specs)
    numbers = iter(range(1, 100))
    for spec in specs:
        metrics = {"output_tok_s": 80.0 if "tuned" in spec.variant else 60.0}
        run = RunResult("single", 1, 1, 5.0, 20.0, 1, 0, 500, metrics)
        for body, phase in (
            (ev.TrialAccepted(spec), Phase.LAUNCHING),
            (ev.RunFinished(run), Phase.MEASURING),
            (ev.TrialOver(Outcome.OK), Phase.OVER),
        ):
            event = ev.Event(next(numbers), 100, spec.trial_id, 1, 0, phase, body)
            store.record_event("agent", "here", event)
    return ReadOnlyController(store, folder)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_resolved_job_is_read_as_it_was_written(path: Path) -> None:
    job = load_job_file(path).job
    read = read_stored_job("job-1", resolved_json(job), "")
    assert read.notes == ()
    for field in fields(Job):
        if field.name not in ("files", "places"):
            assert getattr(read.job, field.name) == getattr(job, field.name)


@pytest.mark.parametrize("rule", REFUSED)
async def test_results_stay_readable_when_a_newer_rule_refuses_the_text(
    tmp_path: Path, rule: str
) -> None:
    text = REFUSED[rule]
    with pytest.raises(JobRejected):
        load_job(text, "job.yaml")
    controller = stored(tmp_path, text, resolved_json(load_job(JOB, "job.yaml").job))
    compared = await compare_job(controller, "job-1", VerdictOptions())
    assert (compared.baseline, compared.question.margin) == ("nccl=tuned", 0.1)
    assert [row.variant for row in compared.rows] == ["nccl=tuned", "nccl=default"]
    assert not any("was stored by another version" in note for note in compared.notes)


@pytest.mark.parametrize("rule", REFUSED)
async def test_a_job_from_before_is_read_with_the_rules_off_and_compare_says_so(
    tmp_path: Path, rule: str
) -> None:
    controller = stored(tmp_path, REFUSED[rule], "")
    compared = await compare_job(controller, "job-1", VerdictOptions())
    assert compared.baseline == "nccl=tuned"
    assert [row.variant for row in compared.rows] == ["nccl=tuned", "nccl=default"]
    (note,) = [note for note in compared.notes if "was stored by another version" in note]
    assert ("measure.margin" in note) == (rule == "a new limit")


def test_settings_of_a_later_version_are_read_from_the_text(tmp_path: Path) -> None:
    read = read_stored_job("job-1", '{"name": ["another", "shape"]}', JOB)
    assert replace(read.job, file="", places={}) == replace(
        load_job(JOB, "job.yaml").job, file="", places={}
    )
    assert len(read.notes) == 1


async def test_a_submitted_job_is_stored_with_the_settings_that_it_was_read_with(
    tmp_path: Path,
) -> None:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock")
    await agent.up()
    try:
        async with start_controller(tmp_path / "controller", [agent.address]) as here:
            job_id = await here.fleet.submit(JOB, "job.yaml")
            await eventually(here.fleet.jobs, lambda jobs: jobs[0].state == "done")
            results = await here.fleet.results(job_id)
    finally:
        await agent.down()
    assert read_stored_job(job_id, results.resolved, "").job == replace(
        load_job(JOB, "job.yaml").job, files=(), places={}
    )
