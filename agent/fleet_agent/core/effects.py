"""Owns the orders that the trial machine gives; carries none out. Each ends in exactly one event,
named in its docstring.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_agent.core.load_search import SearchRun
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Workload


@dataclass(frozen=True, slots=True)
class LaunchServer:
    """Journal ServerLaunching, then start the server. Ends in ServerLaunched, or ServerFailed when
    no process came to be.

    `witness`: a launch that logs all that NCCL does, to be proved and stopped; nothing is measured
    on it.
    """

    witness: bool = False


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Ask until the server is ready, at most until `deadline_s` on the clock of `step`. Ends in
    ServerReady or ServerFailed.
    """

    deadline_s: float


@dataclass(frozen=True, slots=True)
class ProveConfiguration:
    """Read back what took effect. Ends in ConfigurationProved or ServerFailed."""


@dataclass(frozen=True, slots=True)
class HoldServer:
    """Keep a part of a server that another host serves, until a cancel. At `deadline_s` on the
    clock of `step` it ends in ServerFailed.
    """

    deadline_s: float


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Send unmeasured load. Ends in WarmedUp or LoadFailed."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class MeasureRun:
    """Measure run `index` (from 1, void runs counted) of `workload`. Ends in RunFinished or
    LoadFailed.

    Of a search: the workload is that of the run's load, `told` what the runs before it said.
    """

    workload: Workload
    index: int
    search_runs: tuple[SearchRun, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortLoad:
    """Cancel the load in flight; no event of its own, and that of the load is late from now on."""


@dataclass(frozen=True, slots=True)
class CollectEvidence:
    """Keep logs and metrics of the server. Ends in EvidenceCollected, with fewer artifacts when
    some could not be had.
    """


@dataclass(frozen=True, slots=True)
class StopServer:
    """End every process of the server, found by record or by token. Ends in ServerStopped."""


@dataclass(frozen=True, slots=True)
class CloseTrial:
    """Give GPUs and port back and write the end. Ends in TrialOver with the same content."""

    outcome: Outcome
    kind: ErrorKind = ErrorKind.NONE
    failure_class: str = ""
    message: str = ""


Effect = (
    LaunchServer | AwaitReady | ProveConfiguration | HoldServer | WarmUp | MeasureRun | AbortLoad | CollectEvidence | StopServer
    | CloseTrial
)  # fmt: skip
