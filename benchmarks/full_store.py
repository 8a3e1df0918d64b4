"""Fills a store with jobs of finished trials, with their events and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import insert

from fleet_controller.core.trial_state import Attempt
from fleet_controller.store import tables as t
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_protos import events as ev
from fleet_protos.codec import event_to_json, to_json
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Outcome,
    Phase,
    RunResult,
    TrialSpec,
    Workload,
)
from fleet_protos.v1 import trial_pb2

ENV = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_NTHREADS": "512"}
METRICS = {f"metric_{number}": number / 7 for number in range(16)}
AGENT = "0" * 32
HOSTS = 100


def make_spec(job_id: str, number: int) -> TrialSpec:
    """Return the spec of one trial; its host is one of 100, in turn."""
    engine = EngineSpec(
        EngineKind.SIMULATED, "sim/kimi", {"tp_size": 8, "speculative_num_steps": 5}, ENV, 8
    )
    workload = Workload("single", 1, 1, prompts="builtin:chat", output_tokens=500, api="chat")
    host = f"host-{number % HOSTS}"
    return TrialSpec(
        f"{job_id}-b1-v{number}",
        1,
        job_id,
        job_id,
        f"v={number}",
        {"v": str(number)},
        1,
        host,
        engine,
        (workload,),
    )


def finished_events(trial: TrialSpec, first: int) -> Iterator[ev.Event]:
    """Yield the seven events of a trial that measured three runs, numbered from `first`."""
    bodies: list[tuple[ev.Body, Phase]] = [
        (ev.TrialAccepted(trial), Phase.LAUNCHING),
        (ev.ServerReady(5.0), Phase.WARMING),
    ]
    bodies += [(ev.RunFinished(_run(index)), Phase.MEASURING) for index in (1, 2, 3)]
    bodies += [
        (ev.ServerStopped("term", 1.0), Phase.STOPPING),
        (ev.TrialOver(Outcome.OK), Phase.OVER),
    ]
    for step, (body, phase) in enumerate(bodies):
        yield ev.Event(first + step, first + step, trial.trial_id, 1, 0, phase, body)


def add_finished_job(store: Store, job_id: str, trials: int, first: int) -> int:
    """Add a job whose trials all ended with outcome ok; return the number that follows its last
    event.

    `first`: the number of its first event.
    """
    specs = [make_spec(job_id, number) for number in range(trials)]
    store.add_job(JobRow(job_id, job_id, "", "", first, "simulated", 20.0, 60.0), specs)
    with store.engine.begin() as connection:
        connection.execute(insert(t.attempts), [_attempt_row(spec, first) for spec in specs])
        connection.execute(insert(t.events), list(_event_rows(specs, first)))
        connection.execute(insert(t.runs), list(_run_rows(specs)))
    return first + 7 * trials


def _run(index: int) -> RunResult:
    return RunResult("single", index, 1, 5.0, 20.0, 1, 0, 500, METRICS)


def _attempt_row(spec: TrialSpec, at_ns: int) -> dict[str, object]:
    over = Attempt(
        1, AGENT, Phase.OVER, Outcome.OK, runs=3, started_unix_ns=at_ns, ended_unix_ns=at_ns + 10**9
    )
    columns = {
        name: getattr(over, name) for name in Attempt.__dataclass_fields__ if name != "number"
    }
    return {"trial_id": spec.trial_id, "attempt": 1, **columns}


def _event_rows(specs: Sequence[TrialSpec], first: int) -> Iterator[dict[str, object]]:
    for number, spec in enumerate(specs):
        for event in finished_events(spec, first + 7 * number):
            text = event_to_json(event)
            yield {
                "agent_id": AGENT,
                "sequence": event.sequence,
                "trial_id": spec.trial_id,
                "attempt": 1,
                "event": text,
            }


def _run_rows(specs: Sequence[TrialSpec]) -> Iterator[dict[str, object]]:
    texts = {index: to_json(_run(index), trial_pb2.RunResult()) for index in (1, 2, 3)}
    for spec in specs:
        for index, text in texts.items():
            yield {
                "trial_id": spec.trial_id,
                "attempt": 1,
                "workload": "single",
                "run_index": index,
                "run": text,
            }
