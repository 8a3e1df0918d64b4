"""Owns the driving of a whole trial on a real SGLang through the agent's own runner, errands and
supervisor. Judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from fleet_agent.core.trial_machine import new_trial
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.host.processes import (
    TOKEN_VARIABLE,
    ProcessStat,
    RecordedSession,
    members_of,
    read_stat,
)
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor, wait_gone
from fleet_agent.server.trial_server import TrialTools
from fleet_agent.trials.effect_handlers import EffectHandlers
from fleet_agent.trials.runner import TrialRunner
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.job_plan import make_plan, trial_spec
from fleet_protos import events as ev
from fleet_protos.trial_types import TrialSpec
from tests.real_sglang.environment import cache, ensure

EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang-cpu.yaml"
TRIAL_LIMIT_S = 400.0

B = TypeVar("B")
Meddle = Callable[[ev.Body, "Told"], Awaitable[None]]


@dataclass
class Told:
    """The events of one trial in order, each with the monotonic second at which it was journalled."""

    folder: Path
    bodies: list[ev.Body] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)  # when each launcher was gone
    notes: dict[str, float] = field(default_factory=dict)  # what a test did to it, and when

    def one(self, kind: type[B]) -> B:
        """The only event of its kind."""
        (found,) = (body for body in self.bodies if isinstance(body, kind))
        return found

    def when(self, kind: type) -> float:
        """The second of the first event of its kind."""
        return next(
            at_s
            for body, at_s in zip(self.bodies, self.at_s, strict=True)
            if isinstance(body, kind)
        )

    def left(self) -> list[str]:
        """What still lives of any server that was launched, shown by its recorded session."""
        return [str(process) for session in self.sessions() for process in members_of(session)]

    def sessions(self) -> list[RecordedSession]:
        """The record of each server that was launched."""
        return [
            RecordedSession(
                body.pid,
                body.session_id,
                body.start_ticks,
                body.env[TOKEN_VARIABLE],
                body.log_path,
                body.boot_id,
            )
            for body in self.bodies
            if isinstance(body, ev.ServerLaunched)
        ]


def example() -> TrialSpec:
    """The first trial of the example's plain variant, as the controller makes it, without load:
    launched, proved and stopped.
    """
    ensure()
    text = EXAMPLE.read_text(encoding="utf-8").replace("~/.cache/benchfleet", str(cache()))
    job = load_job(text, str(EXAMPLE)).job
    plan = make_plan(job, ["here"])
    planned = next(trial for trial in plan.trials if trial.variant.is_baseline)
    return replace(trial_spec(job, plan, planned, 1, "real"), workloads=())


async def run_trial(
    spec: TrialSpec, folder: Path, meddle: Meddle | None = None, load: LoadProcess | None = None
) -> Told:
    """Run it from TrialAccepted to TrialOver. `meddle` is awaited at each event, before what
    follows from it; `load` is started.
    """
    told = Told(folder)

    async def note_end(launcher: ProcessStat) -> None:
        await wait_gone(launcher)
        told.ended_s.append(time.monotonic())

    async def record(body: ev.Body, trial: object, cause: int) -> ev.Event:
        told.bodies.append(body)
        told.at_s.append(time.monotonic())
        if isinstance(body, ev.ServerLaunched) and (launcher := read_stat(body.pid)):
            tasks.create_task(note_end(launcher))
        if meddle is not None:
            await meddle(body, told)
        return ev.Event(len(told.bodies), 0, spec.trial_id, spec.attempt, cause, body=body)

    tools = TrialTools(Supervisor(), load or LoadProcess(), Ports(), ENGINES)
    home = folder / spec.trial_id / str(spec.attempt)
    home.mkdir(parents=True)
    async with asyncio.timeout(TRIAL_LIMIT_S), asyncio.TaskGroup() as tasks:
        await TrialRunner(new_trial(spec), EffectHandlers(spec, tools, (), home), record).run(
            ev.TrialAccepted(spec)
        )
    return told


async def run_with_load(spec: TrialSpec, folder: Path) -> Told:
    """As `run_trial`, with a load process that is ready before."""
    load = LoadProcess()
    await load.start(folder / "load")
    await load.wait_ready()
    try:
        return await run_trial(spec, folder, load=load)
    finally:
        await load.stop()


def with_args(spec: TrialSpec, name: str, **args: object) -> TrialSpec:
    """The trial of that name, with these arguments of the server changed; None takes one away."""
    kept = {key: value for key, value in {**spec.engine.args, **args}.items() if value is not None}
    return replace(spec, trial_id=name, variant=name, engine=replace(spec.engine, args=kept))


def with_python(spec: TrialSpec, folder: Path, before: str, after: str = "") -> TrialSpec:
    """The server's Python inside a shell script with these lines around it."""
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\n{before}\n{"exec " if not after else ""}{spec.engine.python} "$@"\n{after}\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return replace(spec, engine=replace(spec.engine, python=str(script)))
