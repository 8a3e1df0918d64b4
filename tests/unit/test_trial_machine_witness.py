"""Owns the promises of the witness launch: it comes first, is proved and stopped, and whatever ends
it ends the trial as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fleet_agent.core.effects import (
    AwaitReady,
    CloseTrial,
    CollectEvidence,
    Effect,
    LaunchServer,
    MeasureRun,
    ProveConfiguration,
    StopServer,
    WarmUp,
)
from fleet_agent.core.trial import AgentTrial, LaunchProgress, ServerState
from fleet_agent.core.trial_machine import InvalidTransition, accepts, new_trial, step
from fleet_protos.errors import ErrorKind
from fleet_protos.events import (
    AgentRestarted,
    Body,
    CancelRequested,
    ConfigurationProved,
    EvidenceCollected,
    RunFinished,
    ServerFailed,
    ServerLaunched,
    ServerLaunching,
    ServerProgressed,
    ServerReady,
    ServerStopped,
    TrialAccepted,
    TrialOver,
    WarmedUp,
)
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gate,
    GateEffect,
    Measure,
    Outcome,
    Phase,
    RunResult,
    TrialSpec,
    Workload,
)

ONE = Workload(name="single", concurrency=1)
SPEC = TrialSpec(
    trial_id="t",
    engine=EngineSpec(kind=EngineKind.SIMULATED, ready_timeout_s=60),
    workloads=(ONE,),
    measure=Measure(1, 1),
    witness=True,
)
WITNESS: tuple[Body, ...] = (
    TrialAccepted(SPEC), ServerLaunching("token", 4000, witness=True), ServerLaunched(12, 12, 99), ServerReady(1.0),
    ConfigurationProved(witness=True), ServerStopped("term", 0.1),
)  # fmt: skip
MEASURED: tuple[Body, ...] = (
    ServerLaunching("token", 4001), ServerLaunched(13, 13, 100), ServerReady(1.0), ConfigurationProved(), WarmedUp("single"),
    RunFinished(RunResult("single", 1, metrics={"output_tok_s": 100.0})), EvidenceCollected(), ServerStopped("term", 0.1),
    TrialOver(Outcome.OK),
)  # fmt: skip
DIED = ServerFailed(ErrorKind.SERVER_OOM, "cuda_oom", "out of memory", -9)


def follow(
    bodies: Sequence[Body], trial: AgentTrial | None = None
) -> tuple[AgentTrial, list[Effect]]:
    trial = trial or new_trial(SPEC)
    effects: list[Effect] = []
    for at_s, body in enumerate(bodies):
        assert accepts(trial, body), f"{body} is late in {trial.phase}"
        trial, ordered = step(trial, body, float(at_s))
        effects.extend(ordered)
    return trial, effects


def test_a_witness_is_launched_proved_and_stopped_before_the_measured_server() -> None:
    trial, effects = follow([*WITNESS, *MEASURED])
    assert effects == [
        LaunchServer(witness=True), AwaitReady(62.0), ProveConfiguration(), StopServer(),
        LaunchServer(), AwaitReady(67.0), ProveConfiguration(), WarmUp(ONE), MeasureRun(ONE, 1), CollectEvidence(), StopServer(),
        CloseTrial(Outcome.OK),
    ]  # fmt: skip
    assert (trial.phase, trial.outcome) == (Phase.OVER, Outcome.OK)


def test_an_external_server_has_no_witness() -> None:
    spec = replace(
        SPEC, engine=EngineSpec(kind=EngineKind.EXTERNAL, url="http://x", ready_timeout_s=5)
    )
    assert step(new_trial(spec), TrialAccepted(spec), 0.0)[1] == (AwaitReady(5.0),)


def test_a_gate_of_the_witness_that_voids_the_trial_ends_it_before_any_load() -> None:
    gate = Gate("env_not_effective", GateEffect.VOID_TRIAL, "NCCL_ALGO did not reach NCCL")
    proved = ConfigurationProved(gates=(gate,), witness=True)
    trial, effects = follow([*WITNESS[:4], proved, EvidenceCollected(), ServerStopped("term")])
    assert [type(effect) for effect in effects[3:]] == [CollectEvidence, StopServer, CloseTrial]
    assert effects[-1] == CloseTrial(
        Outcome.FAILED,
        ErrorKind.GATE_VOIDED,
        "env_not_effective",
        "launching the witness: NCCL_ALGO did not reach NCCL",
    )
    assert trial.phase is Phase.STOPPING


@pytest.mark.parametrize("count", [3, 4])
def test_a_witness_that_dies_fails_the_trial(count: int) -> None:
    trial, effects = follow([*WITNESS[:count], DIED, EvidenceCollected(), ServerStopped("none")])
    assert [type(effect) for effect in effects[-3:]] == [CollectEvidence, StopServer, CloseTrial]
    assert trial.ending is not None
    assert (trial.ending.kind, trial.ending.failure_class) == (ErrorKind.SERVER_OOM, "cuda_oom")


def test_a_death_that_is_told_while_the_witness_is_stopped_is_no_news() -> None:
    trial, _ = follow(WITNESS[:5])
    assert not accepts(trial, DIED)


@pytest.mark.parametrize("count", [3, 4])
def test_a_trial_cancelled_with_its_witness_up_stops_it_and_launches_nothing_more(
    count: int,
) -> None:
    trial, effects = follow([*WITNESS[:count], CancelRequested("enough")])
    assert effects[-1] == StopServer()
    _, closing = follow([ServerStopped("term")], trial)
    assert [type(effect) for effect in closing] == [CloseTrial]


def test_a_trial_cancelled_while_its_witness_is_stopped_waits_for_that_and_launches_nothing_more() -> (
    None
):
    trial, effects = follow([*WITNESS[:5], CancelRequested("enough")])
    assert effects.count(StopServer()) == 1
    assert trial.phase is Phase.STOPPING
    _, closing = follow([ServerStopped("term")], trial)
    assert closing == [CloseTrial(Outcome.CANCELLED, message="launching the witness: enough")]


def test_a_restarted_agent_stops_the_witness_and_fails_the_trial() -> None:
    for count, orders in (
        (2, [StopServer]),
        (3, [StopServer]),
        (4, [StopServer]),
        (5, [StopServer]),
        (6, [CloseTrial]),
    ):
        trial, _ = follow(WITNESS[:count])
        trial, effects = follow([AgentRestarted()], trial)
        assert [type(effect) for effect in effects] == orders
        assert trial.ending is not None
        assert trial.ending.kind is ErrorKind.AGENT_RESTARTED


def test_what_is_left_of_a_witness_keeps_the_measured_server_from_being_launched() -> None:
    trial, effects = follow(
        [*WITNESS[:5], ServerStopped("kill", 30.0, ("pid 77 (sglang::sched)",))]
    )
    assert LaunchServer() not in effects
    assert trial.ending is not None
    assert (trial.ending.failure_class, trial.server) == ("left_over_processes", ServerState.GONE)


def test_a_second_launch_that_does_not_come_to_be_is_not_stopped() -> None:
    absent = ServerFailed(ErrorKind.SERVER_LAUNCH, "launch_failed", "no such file")
    _, effects = follow([*WITNESS, MEASURED[0], absent, EvidenceCollected()])
    assert [type(effect) for effect in effects[4:]] == [LaunchServer, CollectEvidence, CloseTrial]


@pytest.mark.parametrize(
    "body", [ServerProgressed("ready"), ServerReady(1.0), ConfigurationProved(witness=True)]
)
def test_what_the_witness_still_tells_while_it_is_stopped_is_late(body: Body) -> None:
    trial, _ = follow(WITNESS[:5])
    assert not accepts(trial, body)


def test_a_server_of_the_other_kind_than_was_ordered_is_impossible() -> None:
    trial, _ = follow(WITNESS[:1])
    with pytest.raises(InvalidTransition):
        accepts(trial, ServerLaunching("token", 4000))


def test_progress_is_kept_and_begins_anew_with_the_measured_server() -> None:
    trial, effects = follow([*WITNESS[:3], ServerProgressed("load_weight", 61, 163)])
    assert trial.progress == LaunchProgress("load_weight", 61, 163)
    assert trial.awaited == effects[-1] == AwaitReady(62.0)
    later, _ = follow([*WITNESS[3:], MEASURED[0]], trial)
    assert later.progress == LaunchProgress()


def test_a_run_whose_gate_voids_the_trial_ends_it_at_once() -> None:
    gate = Gate("spec_ineffective", GateEffect.VOID_TRIAL, "1.00 tokens accepted a step")
    void = RunFinished(RunResult("single", 1, metrics={"output_tok_s": 100.0}, gates=(gate,)))
    trial, effects = follow([*WITNESS, *MEASURED[:5], void])
    assert effects[-1] == CollectEvidence()
    assert trial.ending is not None
    assert (trial.ending.kind, trial.ending.failure_class) == (
        ErrorKind.GATE_VOIDED,
        "spec_ineffective",
    )
