"""Defines the effects: the orders of a trial's state machine. Each effect ends with one event."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_agent.core.load_search import SearchRun
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Workload


@dataclass(frozen=True, slots=True)
class LaunchServer:
    """Order to journal the event ServerLaunching and then start the server.

    Ends with the event ServerLaunched, or with ServerFailed if no process was started. If `witness`
    is set, NCCL writes its full log, and the server is proved and stopped without being measured.
    """

    witness: bool = False


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Order to wait until the server is ready, at most until `deadline_s` on the clock of `step`.

    Ends with the event ServerReady or ServerFailed.
    """

    deadline_s: float


@dataclass(frozen=True, slots=True)
class ProveConfiguration:
    """Order to read back the configuration that took effect.

    Ends with the event ConfigurationProved or ServerFailed.
    """


@dataclass(frozen=True, slots=True)
class HoldServer:
    """Order to keep the server of a gang member running until the trial is cancelled. The lead of
    the gang, on another host, serves the requests.

    Ends with the event CancelRequested, or with ServerFailed at `deadline_s` on the clock of
    `step`.
    """

    deadline_s: float


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Order to send load that is not measured. Ends with the event WarmedUp or LoadFailed."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class MeasureRun:
    """Order to measure run `index` of `workload`. The index starts at 1 and counts void runs, too.

    Ends with the event RunFinished or LoadFailed. In a search, `workload` is set to the load of
    this run and `search_runs` holds the earlier runs.
    """

    workload: Workload
    index: int
    search_runs: tuple[SearchRun, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortLoad:
    """Order to cancel the load that is being sent. This effect has no event of its own. The event
    of the cancelled load counts as late from now on.
    """


@dataclass(frozen=True, slots=True)
class CollectEvidence:
    """Order to keep the server's logs and metrics as artifacts.

    Ends with the event EvidenceCollected. It lists only the artifacts that could be read.
    """


@dataclass(frozen=True, slots=True)
class StopServer:
    """Order to end every process of the server. The processes are found by the Linux session in the
    journal or by the launch token.

    Ends with the event ServerStopped.
    """


@dataclass(frozen=True, slots=True)
class CloseTrial:
    """Order to release the trial's GPUs and port, and to journal its end.

    Ends with the event TrialOver, which has the same content.
    """

    outcome: Outcome
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""


Effect = (
    LaunchServer
    | AwaitReady
    | ProveConfiguration
    | HoldServer
    | WarmUp
    | MeasureRun
    | AbortLoad
    | CollectEvidence
    | StopServer
    | CloseTrial
)
