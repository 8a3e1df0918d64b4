"""Defines the state of one trial as a frozen value. Only `trial_machine.step` computes a new state.

Separate fields say what the controller wants (run or stop), where the trial is (phase) and how the
trial ends (ending).
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
    """Says what the controller wants from the trial."""

    RUN = "run"
    STOP = "stop"


class ServerState(Enum):
    """The state of the server that the agent launches for the trial.

    The states follow one another in the order of their definition. The state stays ABSENT if the
    trial measures an external server.
    """

    ABSENT = "absent"
    LAUNCHING = "launching"  # the launch was ordered; a process may or may not exist
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MeasurePosition:
    """Says how far the measuring of a trial has got.

    - `workload`: index of the current workload
    - `runs`: number of its runs, including void runs
    - `values`: output tokens/s of its valid runs
    - `void_in_row`: number of void runs since its last valid run
    - `warm_up`: how many of the first `values` were not steady, according to the newest run
    - `search_runs`: all its runs, if the workload is a search
    """

    workload: int = 0
    runs: int = 0
    values: tuple[float, ...] = ()
    void_in_row: int = 0
    warm_up: int = 0
    search_runs: tuple[SearchRun, ...] = ()


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """Holds a past event of a trial, for a bug report.

    `at_s` is the time in seconds on the clock of `step`. `phase` is the trial's phase after the
    event.
    """

    at_s: float
    kind: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class LaunchProgress:
    """Says how far a launch has got: its phase, read from the server's log, and `done` of `total`
    steps of the phase.

    `total` is 0 if the phase has no count.
    """

    phase: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """Holds the state of a trial after its events so far.

    `awaited` is the effect that still has to end with its event. `ending` is set when the end is
    decided, which is before the trial is over. `witnessing` means that the current server is the
    witness. The server to measure is launched after the witness.
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
        """The outcome of the trial; `UNSPECIFIED` until the trial is over."""
        return (
            self.ending.outcome if self.ending and self.phase in TERMINAL else Outcome.UNSPECIFIED
        )

    @property
    def key(self) -> tuple[str, int]:
        """The trial id and the attempt, which together identify the trial on the agent."""
        return self.spec.trial_id, self.spec.attempt


class InvalidTransition(Bug):
    """Raised for an event that is impossible in the trial's state. `recent` holds the last events,
    oldest first.
    """

    def __init__(self, trial: AgentTrial, body: Body) -> None:
        self.recent = trial.recent
        past = ", ".join(f"{entry.kind}→{entry.phase.name}" for entry in trial.recent) or "none"
        awaited = type(trial.awaited).__name__ if trial.awaited else "nothing"
        event, phase, server = type(body).__name__, trial.phase.name, trial.server.value
        super().__init__(
            f"trial {trial.spec.trial_id} attempt {trial.spec.attempt}: the event {event} is "
            f"impossible in phase {phase}: the server is {server}, and the trial awaits {awaited}; "
            f"last events: {past}",
            "this is a bug in benchfleet: please report it with the agent's journal",
        )
