"""Owns the value that is one trial; changed only by `machine.step`.

A trial has three things that never share a field: what is wanted (run or stop), where it is
(phase), how it ends (ending).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fleet_agent.core.effects import CloseTrial, Effect
from fleet_agent.core.load_search import SearchRun
from fleet_protos.errors import Bug
from fleet_protos.events import Body
from fleet_protos.trial_types import Outcome, Phase, TrialSpec

TERMINAL = frozenset({Phase.OVER})
RECENT_KEPT = 16


class WantedState(Enum):
    """What the outside wants of the trial."""

    RUN = "run"
    STOP = "stop"


class ServerState(Enum):
    """Our own server of the trial: absent → launching → starting → ready → stopping → gone. Always
    absent for an external one.
    """

    ABSENT = "absent"
    LAUNCHING = "launching"  # ordered; whether a process exists is not known
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MeasurePosition:
    """Where in the workloads: `values` are the output tokens/s of the valid runs of this workload,
    `runs` counts void ones too.

    `warm_up`: of the first of these values, those that were not steady, as the newest run showed.
    `told`: of a search, all its runs.
    """

    workload: int = 0
    runs: int = 0
    values: tuple[float, ...] = ()
    void_in_row: int = 0
    warm_up: int = 0
    search_runs: tuple[SearchRun, ...] = ()


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """An event as a bug report needs it: seconds on the clock of `step`, its kind, the phase after
    it.
    """

    at_s: float
    kind: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class LaunchProgress:
    """How far a launch has come: its phase as the log tells it, and `done` of `total` where the
    phase has a count.
    """

    phase: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """One trial as its events made it. `awaited` is the order whose event is missing; `ending` is
    decided before it is reached.

    `witnessing`: the server of now is the witness, and the measured one follows it.
    """

    spec: TrialSpec
    wanted: WantedState = WantedState.RUN
    phase: Phase = Phase.QUEUED
    server: ServerState = ServerState.ABSENT
    awaited: Effect | None = None
    position: MeasurePosition = field(default_factory=MeasurePosition)
    ending: CloseTrial | None = None
    server_failed: bool = False
    witnessing: bool = False
    progress: LaunchProgress = field(default_factory=LaunchProgress)
    recent: tuple[RecentEvent, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """How it ended; `UNSPECIFIED` until it is over."""
        return (
            self.ending.outcome if self.ending and self.phase in TERMINAL else Outcome.UNSPECIFIED
        )

    @property
    def key(self) -> tuple[str, int]:
        """Trial id and attempt: what makes it one and not another."""
        return self.spec.trial_id, self.spec.attempt


class InvalidTransition(Bug):
    """An event that cannot come where the trial is; `recent` holds the last events, oldest first."""

    def __init__(self, trial: AgentTrial, body: Body) -> None:
        self.recent = trial.recent
        past = ", ".join(f"{entry.kind}→{entry.phase.name}" for entry in trial.recent) or "none"
        awaited = type(trial.awaited).__name__ if trial.awaited else "nothing"
        super().__init__(
            f"trial {trial.spec.trial_id} attempt {trial.spec.attempt}: {type(body).__name__} in {trial.phase.name}, "
            f"server {trial.server.value}, awaiting {awaited}; last events: {past}",
            "this is a bug of benchfleet: please report it with the agent's journal",
        )
