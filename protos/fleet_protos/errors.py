"""Defines the error classes, divided by what to do next. Catch an error only where the program can
do something about it.

FleetError
├── ConfigError       the user must edit            no retry                exit 2
│   └── NotFound      nothing has that name
├── HostUnreachable   network or socket             back off, then give up  exit 3
├── ServerError       launch, oom, unhealthy, exited: retried by table, carried in events
├── LoadError         our measuring broke           trial void, retried once
├── Conflict          wrong state or busy           read the state again    exit 2
│   ├── Superseded    a newer attempt is known      never retry
│   ├── StoreUnusable the database is full or down  retry until it is usable
│   └── StoreLost     removed, replaced or damaged  the controller ends
└── Bug               a promise of ours is broken   stop loudly             exit 4
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from fleet_protos.v1.trial_values import ErrorKind as ErrorKind

# The failure class of an attempt whose agent was asked to stop: nobody's fault, not counted.
AGENT_STOPPED = "agent_stopped"


class ExitCode(IntEnum):
    """The exit codes of `fleetctl`."""

    DONE = 0
    FAILED = 1
    USAGE_ERROR = 2
    UNREACHABLE = 3
    BUG = 4


class FleetError(Exception):
    """An error that its reader can act on. `message` says what happened and where. `hint` says what
    to do next.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(FleetError):
    """The user's file or command is wrong and must be edited."""

    exit_code = ExitCode.USAGE_ERROR


class NotFound(ConfigError):
    """Nothing has the name that the user gave."""


class HostUnreachable(FleetError):
    """A host, an agent or the controller does not answer."""

    exit_code = ExitCode.UNREACHABLE


class ServerError(FleetError):
    """The server did not start, became unhealthy, ran out of memory or exited."""

    def __init__(
        self,
        kind: ErrorKind,
        failure_class: str,
        message: str,
        hint: str = "",
        *,
        exit_code: int = 0,
        log_tail: str = "",
    ) -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.failure_class = failure_class
        self.server_exit_code = exit_code
        self.log_tail = log_tail


class LoadError(FleetError):
    """Our own measuring failed. This is never reported as a slow server."""


class Conflict(FleetError):
    """The current state does not allow the operation: busy, taken or already over. Read the state
    again.
    """

    exit_code = ExitCode.USAGE_ERROR  # not FAILED: nothing was measured


class Superseded(Conflict):
    """The recipient knows a newer attempt of the trial. Sending the order again changes nothing."""


class StoreUnusable(Conflict):
    """The controller's store can be neither read nor written now. No events are lost, because the
    agents keep them.
    """


class StoreLost(Conflict):
    """The controller's store is no longer the one that it opened, or is damaged. The controller
    acknowledges nothing more and ends.
    """


class Bug(FleetError):
    """A promise of this program is broken. This is never the user's fault."""

    exit_code = ExitCode.BUG


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of a group that the user should see: the first FleetError, or the first
    error if there is no FleetError.
    """
    errors = list(_leaf_errors(group))
    return next((error for error in errors if isinstance(error, FleetError)), errors[0])


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaf_errors(part)
    else:
        yield error
