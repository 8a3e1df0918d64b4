"""Owns how a trial moves: events in at one door, orders out; knows no clock, no process and no
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from fleet_agent.core.event_guards import EVENT_GUARDS, LATE_EVENTS, accept_always
from fleet_agent.core.load_search import VOID_RUNS, next_load, to_search_run
from fleet_agent.core.steady_state import rate_of
from fleet_agent.core.stop_rule import VOID_IN_ROW_MAX, Decision, decide
from fleet_agent.core.trial import (
    RECENT_KEPT,
    TERMINAL,
    AgentTrial,
    InvalidTransition,
    LaunchProgress,
    MeasurePosition,
    RecentEvent,
    ServerState,
    WantedState,
)
from fleet_protos.errors import Bug, ErrorKind
from fleet_protos.events import (
    AgentRestarted,
    Body,
    CancelRequested,
    ConfigurationProved,
    Event,
    EvidenceCollected,
    LoadFailed,
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
from fleet_protos.trial_types import EngineKind, GateEffect, Outcome, Phase, TrialSpec

__all__ = ["TERMINAL", "AgentTrial", "InvalidTransition", "accepts", "new_trial", "replay", "step"]

HOLD_LIMIT_S = 86_400.0  # of a member whose controller named no limit

Step = tuple[AgentTrial, tuple[Effect, ...]]


def new_trial(spec: TrialSpec) -> AgentTrial:
    """A trial that nobody has accepted yet."""
    return AgentTrial(spec, witnessing=spec.witness and spec.engine.kind is not EngineKind.EXTERNAL)


def step(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """The trial after `body`, and the orders to carry out once it is journalled. `at_s`: seconds on
    any one clock of the caller.

    A late event changes nothing. Raises InvalidTransition on an impossible one.
    """
    if not accepts(trial, body):
        return trial, ()
    after, effects = _MOVES[trial.phase][type(body)](trial, body, at_s)
    awaited = next(
        (effect for effect in reversed(effects) if not isinstance(effect, AbortLoad)), after.awaited
    )
    recent = (*trial.recent, RecentEvent(at_s, type(body).__name__, after.phase))[-RECENT_KEPT:]
    return replace(
        after, awaited=None if after.phase in TERMINAL else awaited, recent=recent
    ), effects


def accepts(trial: AgentTrial, body: Body) -> bool:
    """False for a late or repeated event, which is to be dropped and not journalled. Raises
    InvalidTransition on an impossible one.
    """
    if type(body) in LATE_EVENTS[trial.phase]:
        return False
    if type(body) not in _MOVES[trial.phase]:
        raise InvalidTransition(trial, body)
    fit = EVENT_GUARDS.get(type(body), accept_always)(trial, body)
    if fit is None:
        raise InvalidTransition(trial, body)
    return fit


def replay(events: Iterable[Event]) -> AgentTrial:
    """The trial that its journalled events made, oldest first; kinds that this version does not
    know are passed over.

    Raises Bug when they do not begin with TrialAccepted.
    """
    trial: AgentTrial | None = None
    for event in events:
        if isinstance(event.body, TrialAccepted) and trial is None:
            trial = new_trial(event.body.spec)
        if trial is None:
            raise Bug(
                f"the journal of trial {event.trial_id} attempt {event.attempt} begins with {type(event.body).__name__}"
            )
        if event.body is not None:
            trial, _ = step(trial, event.body, event.time_unix_ns / 1e9)
    if trial is None:
        raise Bug("no events to replay")
    return trial


# The moves: each is called only with an event that fits.


def _on_accepted(trial: AgentTrial, body: Body, at_s: float) -> Step:
    launching = replace(trial, phase=Phase.LAUNCHING)
    if trial.spec.engine.kind is EngineKind.EXTERNAL:
        return launching, (AwaitReady(at_s + trial.spec.engine.ready_timeout_s),)
    return launching, (LaunchServer(trial.witnessing),)


def _on_launching(trial: AgentTrial, body: Body, at_s: float) -> Step:
    return replace(trial, server=ServerState.LAUNCHING, progress=LaunchProgress()), ()


def _on_launched(trial: AgentTrial, body: Body, at_s: float) -> Step:
    started = replace(trial, server=ServerState.STARTING)
    if trial.wanted is WantedState.STOP:  # cancelled while the process came to be
        return _stop(started)
    return started, (AwaitReady(at_s + trial.spec.engine.ready_timeout_s),)


def _on_progressed(trial: AgentTrial, body: Body, at_s: float) -> Step:
    assert isinstance(body, ServerProgressed)
    return replace(trial, progress=LaunchProgress(body.phase, body.done, body.total)), ()


def _on_ready(trial: AgentTrial, body: Body, at_s: float) -> Step:
    return replace(trial, server=ServerState.READY if _has_server(trial) else trial.server), (
        ProveConfiguration(),
    )


def _on_proved(trial: AgentTrial, body: Body, at_s: float) -> Step:
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
    if trial.spec.engine.gang.is_member:
        return replace(trial, phase=Phase.MEASURING), (
            HoldServer(at_s + (trial.spec.engine.gang.hold_limit_s or HOLD_LIMIT_S)),
        )
    return _next_workload(replace(trial, phase=Phase.WARMING), MeasurePosition())


def _on_witness_stopped(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """The witness has done its part: the measured server is launched, unless something of the
    witness would disturb it.
    """
    assert isinstance(body, ServerStopped)
    if body.left_over:
        return _on_server_stopped(trial, body, at_s)
    return replace(trial, server=ServerState.ABSENT, witnessing=False), (LaunchServer(),)


def _on_warmed_up(trial: AgentTrial, body: Body, at_s: float) -> Step:
    return replace(trial, phase=Phase.MEASURING), (_next_run(trial),)


def _on_run_finished(trial: AgentTrial, body: Body, at_s: float) -> Step:
    assert isinstance(body, RunFinished)
    position = _count_run(trial.position, body)
    after = replace(trial, position=position)
    if gate := next(
        (gate for gate in body.run.gates if gate.effect is GateEffect.VOID_TRIAL), None
    ):
        return _collect(_fail(after, ErrorKind.GATE_VOIDED, gate.code, gate.message))
    decision = _decide(after)
    if decision is Decision.MORE:
        return after, (_next_run(after),)
    if decision is Decision.ENOUGH:
        return _next_workload(after, MeasurePosition(position.workload + 1))
    code, why = next(
        (
            (gate.code, gate.message)
            for gate in body.run.gates
            if gate.effect >= GateEffect.VOID_RUN
        ),
        ("no_rate", ""),
    )
    message = f"{VOID_IN_ROW_MAX} void runs in a row, the last by {code}: {why}"
    return _collect(_fail(after, ErrorKind.GATE_VOIDED, code, message))


def _on_load_failed(trial: AgentTrial, body: Body, at_s: float) -> Step:
    assert isinstance(body, LoadFailed)
    return _collect(_fail(trial, ErrorKind.LOAD_FAILED, "load_failed", body.message))


def _on_server_failed(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """The death of the server explains more than what followed from it, so it replaces an ending
    decided before.
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
    if trial.wanted is WantedState.STOP:  # cancelled while it was launched, and it never came to be
        return _stop(replace(failed, ending=trial.ending))
    return _collect(failed, _abort(trial))


def _on_cancel_requested(trial: AgentTrial, body: Body, at_s: float) -> Step:
    assert isinstance(body, CancelRequested)
    if isinstance(trial.awaited, HoldServer):  # all that was asked of it is done
        return _collect(replace(trial, wanted=WantedState.STOP, ending=CloseTrial(Outcome.OK)))
    message = _with_place(trial, body.reason or "cancelled")
    ending = CloseTrial(Outcome.CANCELLED, message=message)
    if trial.ending and trial.ending.outcome is Outcome.FAILED:
        ending = trial.ending
    stopped = replace(trial, wanted=WantedState.STOP, ending=ending)
    if isinstance(
        trial.awaited, LaunchServer | CollectEvidence
    ):  # both end soon, and a half-launched server could be lost
        return stopped, ()
    if isinstance(trial.awaited, StopServer):  # of the witness: it is under way
        return replace(stopped, phase=Phase.STOPPING), ()
    return _stop(stopped, _abort(trial))


def _on_agent_restarted(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """The loads and waits of the agent before are gone. What was decided stays; what was not has
    failed.
    """
    assert isinstance(body, AgentRestarted)
    ended = (
        trial
        if trial.ending
        else _fail(
            trial,
            ErrorKind.AGENT_RESTARTED,
            "agent_restarted",
            body.message or "the agent restarted",
        )
    )
    return _stop(replace(ended, wanted=WantedState.STOP))


def _on_evidence_collected(trial: AgentTrial, body: Body, at_s: float) -> Step:
    return _stop(trial)


def _on_server_stopped(trial: AgentTrial, body: Body, at_s: float) -> Step:
    assert isinstance(body, ServerStopped)
    gone = replace(trial, server=ServerState.GONE)
    if body.left_over:
        before = (
            f"; before that: {trial.ending.message}"
            if trial.ending and trial.ending.message
            else ""
        )
        message = f"the server left behind: {', '.join(body.left_over)}{before}"
        gone = _fail(gone, ErrorKind.SERVER_UNHEALTHY, "left_over_processes", message)
    return _close(gone)


def _on_trial_over(trial: AgentTrial, body: Body, at_s: float) -> Step:
    assert isinstance(body, TrialOver)
    ending = CloseTrial(body.outcome, body.kind, body.failure_class, body.message)
    return replace(trial, phase=Phase.OVER, ending=ending), ()


# Parts of moves.


def _has_server(trial: AgentTrial) -> bool:
    return trial.server not in (ServerState.ABSENT, ServerState.GONE)


def _abort(trial: AgentTrial) -> tuple[Effect, ...]:
    return (AbortLoad(),) if isinstance(trial.awaited, WarmUp | MeasureRun) else ()


def _next_run(trial: AgentTrial) -> MeasureRun:
    """The next run of the workload at hand; of a search the one of the next load."""
    position, workload = trial.position, trial.spec.workloads[trial.position.workload]
    if workload.search.of:
        workload = workload.at_load(next_load(workload.search, position.search_runs).load)
    return MeasureRun(workload, position.runs + 1, position.search_runs)


def _decide(trial: AgentTrial) -> Decision:
    """What follows on the runs of the workload at hand."""
    position, search = trial.position, trial.spec.workloads[trial.position.workload].search
    if not search.of:
        return decide(position.values, position.void_in_row, trial.spec.measure, position.warm_up)
    ended = next_load(search, position.search_runs).ended
    return Decision.GIVE_UP if ended == VOID_RUNS else Decision.ENOUGH if ended else Decision.MORE


def _count_run(position: MeasurePosition, body: RunFinished) -> MeasurePosition:
    """A run without a usable rate counts as void: it never becomes a number."""
    if body.run.searched.load:
        return replace(
            position,
            runs=position.runs + 1,
            search_runs=(*position.search_runs, to_search_run(body.run)),
        )
    rate = rate_of(body.run)
    if rate is None:
        return replace(position, runs=position.runs + 1, void_in_row=position.void_in_row + 1)
    return replace(
        position,
        runs=position.runs + 1,
        values=(*position.values, rate),
        void_in_row=0,
        warm_up=body.run.warm_up_runs,
    )


def _next_workload(trial: AgentTrial, position: MeasurePosition) -> Step:
    after = replace(trial, position=position)
    if position.workload < len(trial.spec.workloads):
        workload = trial.spec.workloads[position.workload]
        return after, (
            WarmUp(workload.at_load(workload.search.least) if workload.search.of else workload),
        )
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
    """The message with its place in front: phase, workload, run."""
    place = f"{trial.phase.name.lower()}{' the witness' if trial.witnessing and trial.phase is Phase.LAUNCHING else ''}"
    if isinstance(trial.awaited, WarmUp):
        place += f", warm-up of workload {trial.awaited.workload.name}"
    if isinstance(trial.awaited, MeasureRun):
        place += f", workload {trial.awaited.workload.name}, run {trial.awaited.index}"
    return f"{place}: {message}"


Move = Callable[[AgentTrial, Body, float], Step]

_ANY_TIME: Mapping[type, Move] = {
    ServerFailed: _on_server_failed,
    CancelRequested: _on_cancel_requested,
    AgentRestarted: _on_agent_restarted,
}

_MOVES: Mapping[Phase, Mapping[type, Move]] = {
    Phase.QUEUED: {TrialAccepted: _on_accepted, CancelRequested: _on_cancel_requested, AgentRestarted: _on_agent_restarted},
    Phase.LAUNCHING: {
        ServerLaunching: _on_launching, ServerLaunched: _on_launched, ServerProgressed: _on_progressed, ServerReady: _on_ready,
        ConfigurationProved: _on_proved, ServerStopped: _on_witness_stopped, **_ANY_TIME,
    },
    Phase.WARMING: {WarmedUp: _on_warmed_up, LoadFailed: _on_load_failed, **_ANY_TIME},
    Phase.MEASURING: {WarmedUp: _on_warmed_up, RunFinished: _on_run_finished, LoadFailed: _on_load_failed, **_ANY_TIME},
    Phase.COLLECTING: {EvidenceCollected: _on_evidence_collected, **_ANY_TIME},
    Phase.STOPPING: {ServerStopped: _on_server_stopped, TrialOver: _on_trial_over, AgentRestarted: _on_agent_restarted},
    Phase.OVER: {},
}  # fmt: skip
