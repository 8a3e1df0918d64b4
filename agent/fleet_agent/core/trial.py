"""The value of one trial, which only `trial_machine.step` changes.

Three things have a field each: what is wanted (run or stop), where the trial is (phase) and how it
ends (ending).
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
    """What the controller wants from the trial."""

    RUN = "run"
    STOP = "stop"


class ServerState(Enum):
    """State of the server that the agent launches for the trial.

    It goes from absent over launching, starting, ready and stopping to gone. It stays absent when
    the trial measures an external server.
    """

    ABSENT = "absent"
    LAUNCHING = "launching"  # the launch was ordered; a process may or may not exist
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MeasurePosition:
    """How far the measuring has got.

    `workload` is the index of the current workload. `runs` counts its runs, void ones included, and
    `values` holds the output tokens/s of its valid runs. `warm_up` is how many of the first values
    were not steady, as of the newest run. `search_runs` holds all runs of a search.
    """

    workload: int = 0
    runs: int = 0
    values: tuple[float, ...] = ()
    void_in_row: int = 0
    warm_up: int = 0
    search_runs: tuple[SearchRun, ...] = ()


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """One past event for a bug report.

    `at_s` is in seconds on the clock of `step`, `phase` is the trial's phase after the event.
    """

    at_s: float
    kind: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class LaunchProgress:
    """How far a launch has got: its phase from the server's log, and `done` of `total` steps.

    `total` is 0 where the phase has no count.
    """

    phase: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """One trial as the result of its events.

    `awaited` is the effect whose event has not arrived yet. `ending` is set when the end is
    decided, which is before the trial is over. `witnessing` means that the current server is the
    witness; the measured server is launched after it.
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
        """How the trial ended; `UNSPECIFIED` until it is over."""
        return (
            self.ending.outcome if self.ending and self.phase in TERMINAL else Outcome.UNSPECIFIED
        )

    @property
    def key(self) -> tuple[str, int]:
        """Trial id and attempt, which together identify the trial."""
        return self.spec.trial_id, self.spec.attempt


class InvalidTransition(Bug):
    """An event is impossible in the trial's state; `recent` holds the last events, oldest first."""

    def __init__(self, trial: AgentTrial, body: Body) -> None:
        self.recent = trial.recent
        past = ", ".join(f"{entry.kind}→{entry.phase.name}" for entry in trial.recent) or "none"
        awaited = type(trial.awaited).__name__ if trial.awaited else "nothing"
        super().__init__(
            f"trial {trial.spec.trial_id} attempt {trial.spec.attempt}: impossible event "
            f"{type(body).__name__} in {trial.phase.name}, server {trial.server.value}, "
            f"awaiting {awaited}; last events: {past}",
            "this is a bug in benchfleet: please report it with the agent's journal",
        )
