"""An agent that somebody took over: what it may spoil is its own, and the controller goes on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.cli.job_comparison import VerdictOptions, compare_job
from fleet_controller.core.controller_api import JobDetail
from fleet_controller.report.comparison_export import comparison_json
from fleet_controller.report.terminal_layout import comparison_text
from fleet_protos import events as ev
from fleet_protos.errors import HostUnreachable
from fleet_protos.trial_types import Artifact, Outcome, Phase, RunResult, TrialSpec
from tests.fakes.agent import FakeAgent, run_of

EVIL = hashlib.sha256(b"evil").hexdigest()
LIMIT_S = 20.0
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 1}
hosts: {placement: every_host}
"""


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock", by_itself=False)
    await agent.up()
    yield agent
    await agent.down()


async def until(
    fleet: FleetController, job_id: str, wanted: Callable[[JobDetail], bool]
) -> JobDetail:
    async with asyncio.timeout(LIMIT_S):
        async for _ in fleet.watch(job_id):
            detail = await fleet.job(job_id)
            if wanted(detail):
                return detail
    return await fleet.job(job_id)


async def first_started(fleet: FleetController, job_id: str, agent: FakeAgent) -> TrialSpec:
    await until(fleet, job_id, lambda _: bool(agent.started))
    return agent.started[0]


ELSEWHERE = [
    "../outside", "/tmp/outside", "other-trial/1/outside", "{trial}/2/outside", "{trial}/1/../outside", "{trial}/1/outside.partial",
    "{trial}/1/a/outside", "{trial}/1/", "{trial}/1/.outside", "{trial}/1/\0outside", "{trial}/1/\x1b[2Joutside", "{trial}/1/" + "o" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_no_file_is_asked_for_or_written_but_those_of_the_attempt(
    tmp_path: Path, agent: FakeAgent, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with start_controller(tmp_path / "controller", [agent.address]) as here:
            job_id = await here.fleet.submit(JOB, "job.yaml")
            spec = await first_started(here.fleet, job_id, agent)
            name = name.format(trial=spec.trial_id)
            agent.files[name] = b"evil"
            agent.tell(spec, ev.EvidenceCollected((Artifact(name, EVIL, 4),)))
            agent.tell(spec, run_of(spec, 1, artifact=Artifact(name, EVIL, 4)))
            await until(
                here.fleet, job_id, lambda detail: any(trial.runs for trial in detail.trials)
            )
    assert ": file" in caplog.text
    assert "\x1b" not in caplog.text
    assert agent.offsets == []
    assert [file for _, _, files in os.walk(tmp_path) for file in files if "outside" in file] == []


async def test_an_agent_tells_nothing_of_the_trial_of_another_host(
    tmp_path: Path, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    other = FakeAgent(f"unix:{tmp_path}/b.sock", host="there", agent_id="agent-2", by_itself=False)
    await other.up()
    try:
        with caplog.at_level(logging.WARNING):
            async with start_controller(
                tmp_path / "controller", [agent.address, other.address]
            ) as here:
                job_id = await here.fleet.submit(JOB, "job.yaml")
                mine, theirs = (
                    await first_started(here.fleet, job_id, agent),
                    await first_started(here.fleet, job_id, other),
                )
                for body in (run_of(theirs, 1, tok_s=1e9), ev.TrialOver(Outcome.OK)):
                    agent.tell(theirs, body, Phase.OVER)
                agent.tell(mine, run_of(mine, 1))
                await until(
                    here.fleet, job_id, lambda detail: any(trial.runs for trial in detail.trials)
                )
                runs = (await here.fleet.results(job_id)).runs
                states = {
                    trial.host: trial.outcome
                    for trial in (await here.fleet.job(job_id)).trials
                    if trial.attempt
                }
        assert [(run.host, run.run.metrics["output_tok_s"]) for run in runs] == [("here", 80.0)]
        assert states == {"here": Outcome.UNSPECIFIED, "there": Outcome.UNSPECIFIED}
        assert "which is not its own: dropped" in caplog.text
    finally:
        await other.down()


IMPOSSIBLE = [
    {"sequence": 0}, {"sequence": 1 << 63}, {"attempt": 0}, {"attempt": 4_000_000_000}, {"time_unix_ns": -(1 << 63)}, {"cause": 1 << 63},
    {"trial_id": "../x"}, {"trial_id": "\x1b[2J"}, {"trial_id": "x" * 100_000}, {"trial_id": "unknown-trial"},
    {"body": ev.RunFinished(RunResult("w", 0))}, {"body": ev.ConfigurationProved(effective_args={"a": "x" * (5 << 20)})},
    {"body": None},
]  # fmt: skip


@pytest.mark.parametrize("odd", IMPOSSIBLE, ids=lambda odd: str(odd)[:40])
async def test_an_event_that_cannot_be_is_dropped_and_the_next_one_counts(
    tmp_path: Path, agent: FakeAgent, odd: dict[str, object]
) -> None:
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        spec = await first_started(here.fleet, job_id, agent)
        agent.tell(spec, ev.WarmedUp("w", 1))
        agent.journal[-1] = replace(agent.journal[-1], **odd)
        agent.tell(spec, run_of(spec, 1))
        agent.end(spec)
        await until(
            here.fleet,
            job_id,
            lambda detail: any(
                trial.runs == 1 and trial.outcome is Outcome.OK for trial in detail.trials
            ),
        )


async def test_texts_without_end_are_cut_and_stored(tmp_path: Path, agent: FakeAgent) -> None:
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        spec = await first_started(here.fleet, job_id, agent)
        agent.end(
            spec,
            ev.TrialOver(
                Outcome.FAILED,
                failure_class="c\0" + "x" * 999,
                message="\x1b[2J\0" + "m" * 3_000_000,
            ),
        )
        detail = await until(
            here.fleet,
            job_id,
            lambda detail: any(trial.outcome is Outcome.FAILED for trial in detail.trials),
        )
    (failed,) = [trial for trial in detail.trials if trial.outcome is Outcome.FAILED]
    assert (len(failed.failure_class) <= 128, len(failed.message) <= 65536) == (True, True)
    assert "\0" not in failed.failure_class + failed.message


SELVES = [
    {"host": "\x1b[2Jgpu01"},
    {"host": "../x"},
    {"agent_id": "a b"},
    {"labels": {"x": "y" * 100_000}},
]


@pytest.mark.parametrize("odd", SELVES, ids=lambda odd: str(odd)[:20])
async def test_an_agent_that_is_none_of_ours_is_not_followed(
    tmp_path: Path, odd: dict[str, object]
) -> None:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock", **odd)
    await agent.up()
    try:
        async with start_controller(
            tmp_path / "controller", [agent.address], first_contact_s=0.5
        ) as here:
            with pytest.raises(HostUnreachable, match="agent at"):
                await here.fleet.submit(JOB, "job.yaml")
            (status,) = await here.fleet.hosts()
    finally:
        await agent.down()
    assert (status.state, "\x1b" in status.host + status.message) == ("unreachable", False)


class Ear(logging.Handler):
    """Sets `heard` when the log holds certain words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.heard = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.heard.set()


async def test_what_one_attempt_tells_has_an_end(tmp_path: Path, agent: FakeAgent) -> None:
    ear = Ear(" bytes of events")
    logging.getLogger("fleet_controller").addHandler(ear)
    try:
        async with (
            start_controller(tmp_path / "controller", [agent.address]) as here,
            asyncio.timeout(LIMIT_S),
        ):
            job_id = await here.fleet.submit(JOB, "job.yaml")
            spec = await first_started(here.fleet, job_id, agent)
            for _ in range(30):
                agent.tell(spec, ev.ConfigurationProved(effective_args={"a": "x" * (3 << 20)}))
            await ear.heard.wait()
    finally:
        logging.getLogger("fleet_controller").removeHandler(ear)
    assert (tmp_path / "controller" / "store.sqlite3").stat().st_size < 8 << 20


ODD_NUMBERS = [math.nan, math.inf, -math.inf, -5.0, 0.0, 1e308, 1e-308, -1e308]
TWO_VARIANTS = JOB.replace("workloads:", "factors: {n: {a: {}, b: {args: {seed: 2}}}}\nworkloads:")


@pytest.mark.parametrize("number", ODD_NUMBERS)
async def test_no_number_of_an_agent_makes_results_unreadable(
    tmp_path: Path, agent: FakeAgent, number: float
) -> None:
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(TWO_VARIANTS, "job.yaml")
        for index in range(2):
            await until(here.fleet, job_id, lambda _, index=index: len(agent.started) > index)
            spec = agent.started[index]
            for run in (1, 2):
                told = run_of(spec, run, tok_s=80.0).run
                odd = dict.fromkeys(told.metrics, number) if spec.variant == "n=b" else {}
                metrics = {**told.metrics, **odd}
                body = replace(told, metrics=metrics, duration_s=number, time_scale=number)
                agent.tell(spec, ev.RunFinished(body))
            agent.end(spec)
        await until(here.fleet, job_id, lambda detail: detail.job.trials_over == 2)
        compared = await compare_job(here.fleet, job_id, VerdictOptions())
        text = json.dumps(comparison_json(compared), allow_nan=False)
    assert {row.variant for row in compared.rows} == {"n=a", "n=b"}
    assert "n=b" in text + comparison_text(compared, 120, False)


async def test_event_numbers_that_jump_ahead_hide_no_later_event(
    tmp_path: Path, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with start_controller(tmp_path / "controller", [agent.address]) as here:
            job_id = await here.fleet.submit(JOB, "job.yaml")
            spec = await first_started(here.fleet, job_id, agent)
            agent.tell(spec, ev.WarmedUp("w", 1))
            agent.journal[-1] = replace(agent.journal[-1], sequence=10**12)
            agent.tell(spec, run_of(spec, 1))
            agent.end(spec)
            await until(
                here.fleet,
                job_id,
                lambda detail: any(
                    trial.runs == 1 and trial.outcome is Outcome.OK for trial in detail.trials
                ),
            )
    assert "jumps" in caplog.text
