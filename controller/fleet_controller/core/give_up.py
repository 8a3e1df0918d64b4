"""Decides which attempts are given up because a host has been away too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from fleet_controller.core.trial_state import (
    HOST_GIVEN_UP,
    Attempt,
    Trial,
    ended_by_controller,
)
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome

GIVE_UP_AFTER_S = 3600.0
# For a cancelled job: long enough that a host can reconnect and report the end itself.
CANCELLED_AFTER_S = 10.0
UNPLACED = ""  # stands for the host of a trial that any host may take, when all that match are away


@dataclass(frozen=True, slots=True)
class GivenUpAttempt:
    """An attempt of a trial or node that is given up. It was begun on a host that is away, or it is
    the next attempt, which never begins.
    """

    trial_id: str
    attempt: Attempt


def attempts_to_cancel(
    trials: Iterable[Trial], away_s: Mapping[str, float], limit_s: float, now_unix_ns: int
) -> Iterator[GivenUpAttempt]:
    """Yield the attempts of a cancelled job that must be closed because their hosts cannot be
    reached. The rules are those of `attempts_to_give_up`. Trials that ended OK are not closed.
    """
    for end in attempts_to_give_up(trials, away_s, limit_s, now_unix_ns):
        cause = end.attempt.message.partition(";")[0].replace(" has been ", " was ")
        message = f"the job was cancelled while {cause}"
        yield GivenUpAttempt(
            end.trial_id,
            replace(end.attempt, outcome=Outcome.CANCELLED, kind=ErrorKind.NONE, message=message),
        )


def attempts_to_give_up(
    trials: Iterable[Trial], away_s: Mapping[str, float], limit_s: float, now_unix_ns: int
) -> Iterator[GivenUpAttempt]:
    """Yield the attempts of these trials that must be closed because their hosts have been away for
    more than `limit_s`. `away_s` maps each host to the seconds for which it has been away. The key
    UNPLACED stands for the hosts of trials that any host may take.

    If a server runs over several hosts, only its nodes on hosts that are away are closed. The other
    nodes are ended and reported by their own hosts.
    """
    gone = {host: seconds for host, seconds in away_s.items() if seconds > limit_s}
    for trial in trials if gone else ():
        borrowed = trial.spec.load.hosts if not trial.is_active else ()
        missing = [host for host in (*trial.hosts, *borrowed) if host in gone]
        if not missing:
            continue
        if not trial.is_active and trial.may_start:
            closed = _given_up_attempt(
                Attempt(len(trial.attempts) + 1), missing[0], gone[missing[0]], limit_s, now_unix_ns
            )
            yield GivenUpAttempt(trial.spec.trial_id, closed)
        for node in (trial.nodes or (trial,)) if trial.is_active else ():
            newest, host = node.newest, node.spec.host
            if newest is not None and not newest.is_over and host in gone:
                yield GivenUpAttempt(
                    node.spec.trial_id,
                    _given_up_attempt(newest, host, gone[host], limit_s, now_unix_ns),
                )


def _given_up_attempt(
    attempt: Attempt, host: str, away_s: float, limit_s: float, now_unix_ns: int
) -> Attempt:
    who = f"host {host}" if host else "every host that the job may go to"
    message = f"{who} has been away for {_span(away_s)}; the limit is {_span(limit_s)}"
    return ended_by_controller(
        attempt, ErrorKind.HOST_UNREACHABLE, HOST_GIVEN_UP, message, now_unix_ns
    )


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
