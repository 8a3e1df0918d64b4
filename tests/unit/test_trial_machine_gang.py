"""A member of a gang in the trial machine: it holds its part of the server without load, until it
is let go or something dies.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_agent.core.effects import CloseTrial, CollectEvidence, Effect, HoldServer, StopServer
from fleet_agent.core.transitions import HOLD_LIMIT_S
from fleet_agent.core.trial import ServerState
from fleet_agent.core.trial_machine import AgentTrial, accepts, new_trial, step
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gang,
    Gate,
    GateEffect,
    Outcome,
    Phase,
    TrialSpec,
)

SPEC = TrialSpec(
    "t_n1",
    engine=EngineSpec(EngineKind.SIMULATED, gang=Gang(2, 1, "10.0.0.1:20001", hold_limit_s=900.0)),
)
PROVED = ev.ConfigurationProved()
LET_GO = ev.CancelRequested("the lead is over")
DIED = ev.ServerFailed(ErrorKind.SERVER_EXITED, "killed", "it was killed", -9)
READY: tuple[ev.Body, ...] = (
    ev.TrialAccepted(SPEC),
    ev.ServerLaunching("token", 4000),
    ev.ServerLaunched(12, 12, 99),
    ev.ServerReady(1.0),
)


def after(*bodies: ev.Body, spec: TrialSpec = SPEC) -> tuple[AgentTrial, tuple[Effect, ...]]:
    """The trial at its last body, at second 10, and the orders that this body gave."""
    trial, orders = new_trial(spec), ()
    for body in bodies:
        trial, orders = step(trial, body, 10.0)
    return trial, orders


def test_a_member_that_is_proved_holds_up_to_its_limit() -> None:
    trial, orders = after(*READY, PROVED)
    assert (trial.phase, trial.server, orders) == (
        Phase.MEASURING,
        ServerState.READY,
        (HoldServer(910.0),),
    )


def test_a_member_without_a_limit_holds_for_a_day() -> None:
    spec = replace(
        SPEC, engine=replace(SPEC.engine, gang=replace(SPEC.engine.gang, hold_limit_s=0.0))
    )
    assert after(*READY, PROVED, spec=spec)[1] == (HoldServer(10.0 + HOLD_LIMIT_S),)


def test_a_member_that_is_let_go_keeps_its_log_and_ends_well() -> None:
    collecting, orders = after(*READY, PROVED, LET_GO)
    assert orders == (CollectEvidence(),)
    stopping, orders = step(collecting, ev.EvidenceCollected(), 11.0)
    assert orders == (StopServer(),)
    assert step(stopping, ev.ServerStopped("term"), 12.0)[1] == (CloseTrial(Outcome.OK),)


def test_a_member_that_was_let_go_may_lose_its_server_and_be_told_twice() -> None:
    collecting, _ = after(*READY, PROVED, LET_GO)
    assert not accepts(collecting, DIED)
    assert not accepts(collecting, LET_GO)


def test_a_member_that_is_told_to_end_while_it_loads_is_cancelled() -> None:
    _, orders = after(*READY, LET_GO, ev.ServerStopped("term"))
    assert [order.outcome for order in orders if isinstance(order, CloseTrial)] == [
        Outcome.CANCELLED
    ]


def test_a_member_whose_server_dies_while_it_holds_has_failed() -> None:
    trial, orders = after(*READY, PROVED, DIED)
    assert orders == (CollectEvidence(),)
    assert trial.ending is not None
    assert (trial.ending.outcome, trial.ending.failure_class) == (Outcome.FAILED, "killed")


def test_a_member_whose_variables_did_not_take_effect_has_failed() -> None:
    lost = ev.ConfigurationProved(
        gates=(Gate("env_not_effective", GateEffect.VOID_TRIAL, "NCCL_PROTO did not reach NCCL"),)
    )
    trial, _ = after(*READY, lost)
    assert trial.ending is not None
    assert trial.ending.kind is ErrorKind.GATE_VOIDED
