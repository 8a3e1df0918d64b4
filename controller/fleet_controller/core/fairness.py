"""Counts the host time of a job. Jobs of one priority share the fleet by their host times.

The rule is start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) in host seconds: the job with
the smallest host time goes first. A new job starts one trial behind the job with the smallest host
time, so a stream of new jobs cannot hold up an old job.

A job that had no running trial for a while, and then starts one, continues from the smallest host
time of the running jobs. So it gets no credit for the time in which it could not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet_controller.core.trial_state import Trial
from fleet_protos.trial_types import Outcome

UNKNOWN_TRIAL_S = 60.0


@dataclass(frozen=True, slots=True)
class HostTimeAccount:
    """The host time of one job.

    - `joined_s`: the host time in seconds with which the job began.
    - `ended_s`: host seconds of the job's finished attempts.
    - `ended`: how many hosts these attempts took; an attempt counts once for each of its nodes.
    """

    joined_s: float = 0.0
    ended_s: float = 0.0
    ended: int = 0
    share: float = 1.0  # part of a host that one trial takes; below 1 only if trials share hosts

    def with_change(self, before: Trial | None, after: Trial) -> HostTimeAccount:
        """Return the account after a trial changed from `before` to `after`."""
        change = (
            _ended(after)
            if before is None
            else tuple(new - old for new, old in zip(_ended(after), _ended(before), strict=True))
        )
        return replace(
            self, ended_s=self.ended_s + change[0] * self.share, ended=self.ended + int(change[1])
        )

    def caught_up(self, host_time_s: float, least_s: float) -> HostTimeAccount:
        """Return the account of a job that had no running trial and now starts one. Its host time
        becomes at least `least_s`, the smallest host time of the running jobs.
        """
        return replace(self, joined_s=self.joined_s + max(0.0, least_s - host_time_s))

    def trial_s(self, planned_s: float = UNKNOWN_TRIAL_S) -> float:
        """Return the expected host seconds of one more trial: the mean of the finished attempts, or
        the plan's estimate before any attempt has finished.
        """
        return (
            self.ended_s / self.ended if self.ended else planned_s * self.share
        ) or UNKNOWN_TRIAL_S

    def host_time_s(self, active_hosts: int, trial_s: float) -> float:
        """Return the host seconds of the job so far. A running trial counts in full from its start,
        so that no host's clock matters.
        """
        return self.joined_s + self.ended_s + active_hosts * trial_s


def initial_host_time(competitors: Iterable[tuple[float, float]]) -> float:
    """Return the host time with which a new job starts: one trial behind the competitor with the
    smallest host time. Return 0 if there is no competitor.

    `competitors` holds (host time, expected seconds of a trial) for each competing job.
    """
    return min((host_time_s + trial_s for host_time_s, trial_s in competitors), default=0.0)


def _ended(trial: Trial) -> tuple[float, int]:
    """Return two sums over the trial's attempts that began and are over: their host seconds, and
    the number of hosts that they took. If a clock was set back, an attempt counts as 0 s.
    """
    took = [
        max(0.0, (attempt.ended_unix_ns - attempt.started_unix_ns) / 1e9)
        for attempt in trial.attempts
        if attempt.is_over
        and attempt.started_unix_ns
        and attempt.outcome is not Outcome.UNSPECIFIED
    ]
    return sum(took) * len(trial.hosts), len(took) * len(trial.hosts)
