"""Decides whether an event fits the effect that the trial awaits, is late, or is impossible."""

from __future__ import annotations

from collections.abc import Callable

from fleet_agent.core.effects import (
    AwaitReady,
    CloseTrial,
    LaunchServer,
    MeasureRun,
    ProveConfiguration,
    StopServer,
)
from fleet_agent.core.trial import AgentTrial, ServerState, WantedState
from fleet_protos.events import (
    Body,
    ConfigurationProved,
    LoadFailed,
    RunFinished,
    ServerLaunching,
    WarmedUp,
)
from fleet_protos.trial_types import Outcome

EventGuard = Callable[[AgentTrial, Body], "bool | None"]

# A guard returns True if the event fits, False if it is late, None if it is impossible.


def accept_always(trial: AgentTrial, body: Body) -> bool | None:
    """Accept the event. This guard is for events that always fit in the phases that allow them."""
    return True


def fits_launching(trial: AgentTrial, body: Body) -> bool | None:
    assert isinstance(body, ServerLaunching)
    ordered = isinstance(trial.awaited, LaunchServer) and trial.awaited.witness == body.witness
    return True if ordered and trial.server is ServerState.ABSENT else None


def fits_launched(trial: AgentTrial, body: Body) -> bool | None:
    return (
        True
        if isinstance(trial.awaited, LaunchServer) and trial.server is ServerState.LAUNCHING
        else None
    )


def fits_progressed(trial: AgentTrial, body: Body) -> bool | None:
    is_external = trial.server is ServerState.ABSENT and isinstance(trial.awaited, AwaitReady)
    return is_external or trial.server is ServerState.STARTING


def fits_ready(trial: AgentTrial, body: Body) -> bool | None:
    if isinstance(trial.awaited, ProveConfiguration | StopServer):
        return False
    return True if isinstance(trial.awaited, AwaitReady) else None


def fits_proved(trial: AgentTrial, body: Body) -> bool | None:
    assert isinstance(body, ConfigurationProved)
    if isinstance(trial.awaited, StopServer) or (body.witness and not trial.witnessing):
        return False
    return True if isinstance(trial.awaited, ProveConfiguration) else None


def fits_load(trial: AgentTrial, body: Body) -> bool | None:
    """Compare workload and run of the event with the load that is being sent. Run 0 is the warm-up.
    An event of an earlier run is late, an event of a later run is impossible.
    """
    assert isinstance(body, WarmedUp | RunFinished | LoadFailed)
    expected = (
        trial.position.workload,
        trial.awaited.index if isinstance(trial.awaited, MeasureRun) else 0,
    )
    name, index = _load_of(body, expected[1])
    names = [workload.name for workload in trial.spec.workloads]
    if name in ("", names[expected[0]]):
        reported = (expected[0], index)
    elif name in names:
        reported = (names.index(name), index)
    else:
        return None
    return None if reported > expected else reported == expected


def _load_of(body: WarmedUp | RunFinished | LoadFailed, current: int) -> tuple[str, int]:
    """Return the workload's name and the run of an event. A failure names no run, so it belongs to
    the `current` run.
    """
    if isinstance(body, RunFinished):
        return body.run.workload, max(body.run.index, 1)
    return body.workload, 0 if isinstance(body, WarmedUp) else current


def fits_server_failed(trial: AgentTrial, body: Body) -> bool | None:
    """Accept the first failure of a server, unless the server is being stopped.

    When the lead of a gang stops its server, the servers of released members often end on their
    own. This is not a failure.
    """
    released = (
        trial.wanted is WantedState.STOP
        and trial.ending is not None
        and trial.ending.outcome is Outcome.OK
    )
    return not trial.server_failed and trial.server is not ServerState.STOPPING and not released


def fits_cancel(trial: AgentTrial, body: Body) -> bool | None:
    return trial.wanted is WantedState.RUN


def fits_stopped(trial: AgentTrial, body: Body) -> bool | None:
    if isinstance(trial.awaited, StopServer):
        return True
    return False if trial.server is ServerState.GONE else None


def fits_over(trial: AgentTrial, body: Body) -> bool | None:
    return True if isinstance(trial.awaited, CloseTrial) else None
