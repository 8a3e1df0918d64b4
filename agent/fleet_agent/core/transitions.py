"""Defines what each event does to a trial. `trial_machine` checks first that the event is legal."""

from __future__ import annotations

from dataclasses import replace

from fleet_agent.core.effects import (
    AbortLoad,
    AwaitReady,
    CloseTrial,
    CollectEvidence,
    Effect,
    HoldServer,
    LaunchServer,
    MeasureRun,
    ProveConfiguration,
    StopServer,
    WarmUp,
)
from fleet_agent.core.run_sequence import count_run, decide_after_run, next_run, warm_up_workload
from fleet_agent.core.stop_rule import VOID_IN_ROW_MAX, Decision
from fleet_agent.core.trial import (
    AgentTrial,
    LaunchProgress,
    MeasurePosition,
    ServerState,
    WantedState,
)
from fleet_protos.errors import AGENT_STOPPED, ErrorKind
from fleet_protos.events import (
    AgentRestarted,
    Body,
    CancelRequested,
    ConfigurationProved,
    LoadFailed,
    RunFinished,
    ServerFailed,
    ServerProgressed,
    ServerStopped,
    TrialOver,
)
from fleet_protos.trial_types import EngineKind, GateEffect, Outcome, Phase, is_gang_member

HOLD_LIMIT_S = 86_400.0  # how long a gang member is held when the controller sets no limit

Step = tuple[AgentTrial, tuple[Effect, ...]]


def on_accepted(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Launch the server. An external server already runs, so only wait until it is ready."""
    launching = replace(trial, phase=Phase.LAUNCHING)
    if trial.spec.engine.kind is EngineKind.EXTERNAL:
        return launching, (AwaitReady(at_s + trial.spec.engine.ready_timeout_s),)
    return launching, (LaunchServer(trial.witnessing),)


def on_launching(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Record that a process is about to be started."""
    return replace(trial, server=ServerState.LAUNCHING, progress=LaunchProgress()), ()


def on_launched(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Wait until the server answers."""
    started = replace(trial, server=ServerState.STARTING)
    if trial.wanted is WantedState.STOP:  # cancelled while the process was being started
        return _stop(started)
    return started, (AwaitReady(at_s + trial.spec.engine.ready_timeout_s),)


def on_progressed(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Record how far the launch has got."""
    assert isinstance(body, ServerProgressed)
    return replace(trial, progress=LaunchProgress(body.phase, body.done, body.total)), ()


def on_ready(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Prove the configuration of the server."""
    return replace(trial, server=ServerState.READY if _has_server(trial) else trial.server), (
        ProveConfiguration(),
    )


def on_proved(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Begin the first workload. But stop a witness, hold a gang member, and end a trial that a gate
    has voided.
    """
    assert isinstance(body, ConfigurationProved)
    gates = [gate for gate in body.gates if gate.effect is GateEffect.VOID_TRIAL]
    if gates:
        return _collect(
            _fail(
                trial,
                ErrorKind.GATE_VOIDED,
                gates[0].code,
                "; ".join(gate.message for gate in gates),
            )
        )
    if trial.witnessing:
        return replace(trial, server=ServerState.STOPPING), (StopServer(),)
    if is_gang_member(trial.spec.engine.gang):
        return replace(trial, phase=Phase.MEASURING), (
            HoldServer(at_s + (trial.spec.engine.gang.hold_limit_s or HOLD_LIMIT_S)),
        )
    return _next_workload(replace(trial, phase=Phase.WARMING), MeasurePosition())


def on_witness_stopped(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Launch the server to measure. But end the trial if processes of the witness still run."""
    assert isinstance(body, ServerStopped)
    if body.left_over:
        return on_server_stopped(trial, body, at_s)
    return replace(trial, server=ServerState.ABSENT, witnessing=False), (LaunchServer(),)


def on_warmed_up(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Measure the next run."""
    return replace(trial, phase=Phase.MEASURING), (next_run(trial),)


def on_run_finished(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Count the run and measure another one, begin the next workload, or end the trial."""
    assert isinstance(body, RunFinished)
    position = count_run(trial.position, body)
    after = replace(trial, position=position)
    if gate := next(
        (gate for gate in body.run.gates if gate.effect is GateEffect.VOID_TRIAL), None
    ):
        return _collect(_fail(after, ErrorKind.GATE_VOIDED, gate.code, gate.message))
    decision = decide_after_run(after)
    if decision is Decision.MORE:
        return after, (next_run(after),)
    if decision is Decision.ENOUGH:
        return _next_workload(after, MeasurePosition(position.workload + 1))
    code, reason = next(
        (
            (gate.code, gate.message)
            for gate in body.run.gates
            if gate.effect >= GateEffect.VOID_RUN
        ),
        ("no_rate", ""),
    )
    message = f"{VOID_IN_ROW_MAX} void runs in a row, the last by {code}: {reason}"
    return _collect(_fail(after, ErrorKind.GATE_VOIDED, code, message))


def on_load_failed(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """End the trial as failed, because its load could not be sent to the end."""
    assert isinstance(body, LoadFailed)
    return _collect(_fail(trial, ErrorKind.LOAD_FAILED, "load_failed", body.message))


def on_server_failed(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """End the trial as failed, because its server failed. This replaces an ending that was decided
    before: the first sign of trouble may only be a consequence of the server's failure.

    A trial that was cancelled during its launch keeps its ending.
    """
    assert isinstance(body, ServerFailed)
    server = (
        ServerState.ABSENT
        if trial.server in (ServerState.ABSENT, ServerState.LAUNCHING)
        else trial.server
    )
    failed = _fail(
        trial, body.kind or ErrorKind.SERVER_EXITED, body.failure_class or "unknown", body.message
    )
    failed = replace(failed, server=server, server_failed=True)
    if trial.phase is Phase.COLLECTING:
        return failed, ()
    if trial.wanted is WantedState.STOP:  # cancelled during a launch that then failed
        return _stop(replace(failed, ending=trial.ending))
    return _collect(failed, _abort(trial))


def on_cancel_requested(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Stop the trial as soon as the current effect allows it."""
    assert isinstance(body, CancelRequested)
    if isinstance(trial.awaited, HoldServer):  # the gang's lead has finished
        return _collect(replace(trial, wanted=WantedState.STOP, ending=CloseTrial(Outcome.OK)))
    message = _with_place(trial, body.reason or "cancelled")
    ending = CloseTrial(Outcome.CANCELLED, message=message)
    if trial.ending and trial.ending.outcome is Outcome.FAILED:
        ending = trial.ending
    stopped = replace(trial, wanted=WantedState.STOP, ending=ending)
    if isinstance(
        trial.awaited, LaunchServer | CollectEvidence
    ):  # both end soon, and stopping in the middle of a launch could miss the new process
        return stopped, ()
    if isinstance(trial.awaited, StopServer):  # the witness is already being stopped
        return replace(stopped, phase=Phase.STOPPING), ()
    return _stop(stopped, _abort(trial))


def on_agent_restarted(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Stop the trial. Its load and everything that it waited for ended with the previous agent
    process, or ends with this one.

    An ending that was decided before the restart stays. Otherwise the trial has failed.
    """
    assert isinstance(body, AgentRestarted)
    ended = (
        trial
        if trial.ending
        else _fail(
            trial,
            ErrorKind.AGENT_RESTARTED,
            AGENT_STOPPED if body.stopped else "agent_restarted",
            body.message or "the agent restarted",
        )
    )
    return _stop(replace(ended, wanted=WantedState.STOP))


def on_evidence_collected(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Stop the server."""
    return _stop(trial)


def on_server_stopped(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Close the trial. It fails if the server's processes, container or GPU memory still exist."""
    assert isinstance(body, ServerStopped)
    gone = replace(trial, server=ServerState.GONE)
    if body.left_over:
        before = (
            f"; before that: {trial.ending.message}"
            if trial.ending and trial.ending.message
            else ""
        )
        remains = ", ".join(body.left_over)
        message = f"the server was stopped, but these still exist: {remains}{before}"
        gone = _fail(gone, ErrorKind.SERVER_UNHEALTHY, "left_over_processes", message)
    return _close(gone)


def on_trial_over(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """End the trial with the outcome that the event holds."""
    assert isinstance(body, TrialOver)
    ending = CloseTrial(body.outcome, body.kind, body.failure_class, body.message)
    return replace(trial, phase=Phase.OVER, ending=ending), ()


# What the transitions share.


def _has_server(trial: AgentTrial) -> bool:
    return trial.server not in (ServerState.ABSENT, ServerState.GONE)


def _abort(trial: AgentTrial) -> tuple[Effect, ...]:
    return (AbortLoad(),) if isinstance(trial.awaited, WarmUp | MeasureRun) else ()


def _next_workload(trial: AgentTrial, position: MeasurePosition) -> Step:
    after = replace(trial, position=position)
    if position.workload < len(trial.spec.workloads):
        return after, (WarmUp(warm_up_workload(trial.spec.workloads[position.workload])),)
    return _collect(replace(after, ending=CloseTrial(Outcome.OK)))


def _collect(trial: AgentTrial, before: tuple[Effect, ...] = ()) -> Step:
    return replace(trial, phase=Phase.COLLECTING), (*before, CollectEvidence())


def _stop(trial: AgentTrial, before: tuple[Effect, ...] = ()) -> Step:
    if not _has_server(trial):
        return _close(trial, before)
    return replace(trial, phase=Phase.STOPPING, server=ServerState.STOPPING), (
        *before,
        StopServer(),
    )


def _close(trial: AgentTrial, before: tuple[Effect, ...] = ()) -> Step:
    assert trial.ending is not None
    return replace(trial, phase=Phase.STOPPING), (*before, trial.ending)


def _fail(trial: AgentTrial, kind: ErrorKind, failure_class: str, message: str) -> AgentTrial:
    return replace(
        trial, ending=CloseTrial(Outcome.FAILED, kind, failure_class, _with_place(trial, message))
    )


def _with_place(trial: AgentTrial, message: str) -> str:
    """Return the message with its place in front: the trial's phase, and the workload and run that
    were being sent.
    """
    place = trial.phase.name.lower()
    if trial.witnessing and trial.phase is Phase.LAUNCHING:
        place += " the witness"
    if isinstance(trial.awaited, WarmUp):
        place += f", warm-up of workload {trial.awaited.workload.name}"
    if isinstance(trial.awaited, MeasureRun):
        place += f", workload {trial.awaited.workload.name}, run {trial.awaited.index}"
    return f"{place}: {message}"
