"""Implements the state machine of a trial. `step` takes an event and returns the new state of the
trial and the effects to carry out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fleet_agent.core.effects import AbortLoad
from fleet_agent.core.event_guards import (
    EventGuard,
    accept_always,
    fits_cancel,
    fits_launched,
    fits_launching,
    fits_load,
    fits_over,
    fits_progressed,
    fits_proved,
    fits_ready,
    fits_server_failed,
    fits_stopped,
)
from fleet_agent.core.transitions import (
    Step,
    on_accepted,
    on_agent_restarted,
    on_cancel_requested,
    on_evidence_collected,
    on_launched,
    on_launching,
    on_load_failed,
    on_progressed,
    on_proved,
    on_ready,
    on_run_finished,
    on_server_failed,
    on_server_stopped,
    on_trial_over,
    on_warmed_up,
    on_witness_stopped,
)
from fleet_agent.core.trial import RECENT_KEPT, TERMINAL, AgentTrial, InvalidTransition, RecentEvent
from fleet_protos.errors import Bug
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
from fleet_protos.trial_types import EngineKind, Phase, TrialSpec

__all__ = ["TERMINAL", "AgentTrial", "InvalidTransition", "accepts", "new_trial", "replay", "step"]


@dataclass(frozen=True, slots=True)
class Move:
    """A legal move of the state machine. `transition` computes what the event does to the trial.
    `guard` decides whether the event fits the awaited effect.
    """

    transition: Callable[[AgentTrial, Body, float], Step]
    guard: EventGuard = accept_always


def new_trial(spec: TrialSpec) -> AgentTrial:
    """Return a trial in its first state: queued and not accepted yet."""
    return AgentTrial(spec, witnessing=spec.witness and spec.engine.kind is not EngineKind.EXTERNAL)


def step(trial: AgentTrial, body: Body, at_s: float) -> Step:
    """Return the trial after the event, and the effects. The caller journals the event before it
    carries out the effects.

    `at_s` is the time in seconds. All calls for one trial must use the same clock. A late event
    changes nothing. Raises InvalidTransition if the event is impossible in the trial's state.
    """
    move = _find_move(trial, body)
    if move is None:
        return trial, ()
    after, effects = move.transition(trial, body, at_s)
    awaited = next(
        (effect for effect in reversed(effects) if not isinstance(effect, AbortLoad)), after.awaited
    )
    recent = (*trial.recent, RecentEvent(at_s, type(body).__name__, after.phase))[-RECENT_KEPT:]
    return replace(
        after, awaited=None if after.phase in TERMINAL else awaited, recent=recent
    ), effects


def accepts(trial: AgentTrial, body: Body) -> bool:
    """Return whether the event changes the trial. The caller drops a late or repeated event, which
    changes nothing, and does not journal it.

    Raises InvalidTransition if the event is impossible in the trial's state.
    """
    return _find_move(trial, body) is not None


def replay(events: Iterable[Event]) -> AgentTrial:
    """Rebuild a trial from its journalled events, oldest first.

    Skips events of kinds that this version does not know. Raises Bug if the first event is not
    TrialAccepted.
    """
    trial: AgentTrial | None = None
    for event in events:
        if isinstance(event.body, TrialAccepted) and trial is None:
            trial = new_trial(event.body.spec)
        if trial is None:
            raise Bug(
                f"the journal of trial {event.trial_id} attempt {event.attempt} begins with "
                f"{type(event.body).__name__}, not with TrialAccepted"
            )
        if event.body is not None:
            trial, _ = step(trial, event.body, event.time_unix_ns / 1e9)
    if trial is None:
        raise Bug("no events to replay")
    return trial


def _find_move(trial: AgentTrial, body: Body) -> Move | None:
    """Return the move for an event, or LATE for an event to drop. Raises InvalidTransition if the
    event is impossible in the trial's state.
    """
    legal = _MOVES[trial.phase]
    if type(body) not in legal:
        raise InvalidTransition(trial, body)
    move = legal[type(body)]
    fits = move is not None and move.guard(trial, body)
    if fits is None:
        raise InvalidTransition(trial, body)
    return move if fits else LATE


# The legal moves: for each phase, the events that may arrive in it. Any other event is impossible.
# A late event is dropped. It may arrive twice, or from an effect that was overtaken.
# ServerLaunching and ServerLaunched are never late: a second launch is never harmless.
LATE = None

_MOVES: Mapping[Phase, Mapping[type, Move | None]] = {
    Phase.QUEUED: {
        TrialAccepted: Move(on_accepted),
        CancelRequested: Move(on_cancel_requested, fits_cancel),
        AgentRestarted: Move(on_agent_restarted),
    },
    Phase.LAUNCHING: {
        TrialAccepted: LATE,
        ServerLaunching: Move(on_launching, fits_launching),
        ServerLaunched: Move(on_launched, fits_launched),
        ServerProgressed: Move(on_progressed, fits_progressed),
        ServerReady: Move(on_ready, fits_ready),
        ConfigurationProved: Move(on_proved, fits_proved),
        ServerFailed: Move(on_server_failed, fits_server_failed),
        ServerStopped: Move(on_witness_stopped, fits_stopped),
        CancelRequested: Move(on_cancel_requested, fits_cancel),
        AgentRestarted: Move(on_agent_restarted),
    },
    Phase.WARMING: {
        TrialAccepted: LATE,
        ServerProgressed: LATE,
        ServerReady: LATE,
        ConfigurationProved: LATE,
        WarmedUp: Move(on_warmed_up, fits_load),
        LoadFailed: Move(on_load_failed, fits_load),
        ServerFailed: Move(on_server_failed, fits_server_failed),
        CancelRequested: Move(on_cancel_requested, fits_cancel),
        AgentRestarted: Move(on_agent_restarted),
    },
    Phase.MEASURING: {
        TrialAccepted: LATE,
        ServerProgressed: LATE,
        ServerReady: LATE,
        ConfigurationProved: LATE,
        WarmedUp: Move(on_warmed_up, fits_load),
        RunFinished: Move(on_run_finished, fits_load),
        LoadFailed: Move(on_load_failed, fits_load),
        ServerFailed: Move(on_server_failed, fits_server_failed),
        CancelRequested: Move(on_cancel_requested, fits_cancel),
        AgentRestarted: Move(on_agent_restarted),
    },
    Phase.COLLECTING: {
        TrialAccepted: LATE,
        ServerProgressed: LATE,
        ServerReady: LATE,
        ConfigurationProved: LATE,
        WarmedUp: LATE,
        RunFinished: LATE,
        LoadFailed: LATE,
        EvidenceCollected: Move(on_evidence_collected),
        ServerFailed: Move(on_server_failed, fits_server_failed),
        CancelRequested: Move(on_cancel_requested, fits_cancel),
        AgentRestarted: Move(on_agent_restarted),
    },
    Phase.STOPPING: {
        TrialAccepted: LATE,
        ServerProgressed: LATE,
        ServerReady: LATE,
        ConfigurationProved: LATE,
        WarmedUp: LATE,
        RunFinished: LATE,
        LoadFailed: LATE,
        EvidenceCollected: LATE,
        ServerFailed: LATE,
        ServerStopped: Move(on_server_stopped, fits_stopped),
        CancelRequested: LATE,
        AgentRestarted: Move(on_agent_restarted),
        TrialOver: Move(on_trial_over, fits_over),
    },
    Phase.OVER: {
        TrialAccepted: LATE,
        ServerProgressed: LATE,
        ServerReady: LATE,
        ConfigurationProved: LATE,
        WarmedUp: LATE,
        RunFinished: LATE,
        LoadFailed: LATE,
        EvidenceCollected: LATE,
        ServerFailed: LATE,
        ServerStopped: LATE,
        CancelRequested: LATE,
        AgentRestarted: LATE,
        TrialOver: LATE,
    },
}
