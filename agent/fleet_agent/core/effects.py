"""The effects that the trial machine orders. Each ends in one event, named in its docstring."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_agent.core.load_search import SearchRun
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Workload


@dataclass(frozen=True, slots=True)
class LaunchServer:
    """Journal ServerLaunching, then start the server.

    Ends in ServerLaunched, or in ServerFailed if no process was started. A `witness` logs all that
    NCCL does; it is proved and stopped without being measured.
    """

    witness: bool = False


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Wait until the server is ready, at most until `deadline_s` on the clock of `step`.

    Ends in ServerReady or ServerFailed.
    """

    deadline_s: float


@dataclass(frozen=True, slots=True)
class ProveConfiguration:
    """Read back the configuration that took effect. Ends in ConfigurationProved or ServerFailed."""


@dataclass(frozen=True, slots=True)
class HoldServer:
    """Keep a gang member, whose lead on another host serves the requests, until it is cancelled.

    Ends in CancelRequested, or in ServerFailed at `deadline_s` on the clock of `step`.
    """

    deadline_s: float


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Send unmeasured load. Ends in WarmedUp or LoadFailed."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class MeasureRun:
    """Measure run `index` of `workload`; the index starts at 1 and counts void runs.

    Ends in RunFinished or LoadFailed. In a search, `workload` is set to the load of this run and
    `search_runs` holds the earlier runs.
    """

    workload: Workload
    index: int
    search_runs: tuple[SearchRun, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortLoad:
    """Cancel the running load. Has no event; the event of that load counts as late from now on."""


@dataclass(frozen=True, slots=True)
class CollectEvidence:
    """Keep the server's logs and metrics.

    Ends in EvidenceCollected, without the artifacts that could not be read.
    """


@dataclass(frozen=True, slots=True)
class StopServer:
    """End every process of the server, found by its journalled session or by its launch token.

    Ends in ServerStopped.
    """


@dataclass(frozen=True, slots=True)
class CloseTrial:
    """Release GPUs and port and journal the end. Ends in TrialOver with the same content."""

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
