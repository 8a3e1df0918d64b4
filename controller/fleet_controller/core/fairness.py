"""Owns how much host time a job counts as having had, by which jobs of one priority take turns.
Reads no clock.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) in host seconds: the job that has had
least goes first. One that joins starts a trial behind the one that had least, so a flow of new jobs
holds up no old one; one that had nothing running starts from where the least of those that run
stands, so that nobody is owed anything for a time in which it could not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet_controller.core.trial_state import Trial
from fleet_protos.trial_types import Outcome

UNKNOWN_TRIAL_S = 60.0


@dataclass(frozen=True, slots=True)
class HostTimeAccount:
    """What the trials of one job took: `ended_s` host seconds of attempts that are over, `ended` of
    them, each `nodes` hosts wide.
    """

    joined_s: float = 0.0
    ended_s: float = 0.0
    ended: int = 0
    share: float = 1.0  # of a host that one trial takes; below 1 only where trials let others in

    def with_change(self, before: Trial | None, after: Trial) -> HostTimeAccount:
        """The account after a trial changed from `before`."""
        change = (
            _ended(after)
            if before is None
            else tuple(new - old for new, old in zip(_ended(after), _ended(before), strict=True))
        )
        return replace(
            self, ended_s=self.ended_s + change[0] * self.share, ended=self.ended + int(change[1])
        )

    def caught_up(self, host_time_s: float, least_s: float) -> HostTimeAccount:
        """The account of a job that had nothing running and begins again: not behind `least_s`, the
        least of those that run.
        """
        return replace(self, joined_s=self.joined_s + max(0.0, least_s - host_time_s))

    def trial_s(self, planned_s: float = UNKNOWN_TRIAL_S) -> float:
        """Host seconds that one more trial is reckoned at: the mean of those that are over, else
        the plan's guess.
        """
        return (
            self.ended_s / self.ended if self.ended else planned_s * self.share
        ) or UNKNOWN_TRIAL_S

    def host_time_s(self, active_hosts: int, trial_s: float) -> float:
        """Host seconds so far. What runs counts as a whole trial from its begin on, by no clock of
        its host.
        """
        return self.joined_s + self.ended_s + active_hosts * trial_s


def initial_host_time(competitors: Iterable[tuple[float, float]]) -> float:
    """Where a new job begins to count, by (had_s, trial_s) of those that it meets: behind the next
    trial of who had least; 0 alone.
    """
    return min((host_time_s + trial_s for host_time_s, trial_s in competitors), default=0.0)


def _ended(trial: Trial) -> tuple[float, int]:
    """Host seconds and number of attempts that began and are over; a clock that was set back counts
    as no time.
    """
    took = [
        max(0.0, (attempt.ended_unix_ns - attempt.started_unix_ns) / 1e9)
        for attempt in trial.attempts
        if attempt.is_over
        and attempt.started_unix_ns
        and attempt.outcome is not Outcome.UNSPECIFIED
    ]
    return sum(took) * len(trial.hosts), len(took) * len(trial.hosts)
