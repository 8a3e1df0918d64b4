"""Decides when failures quarantine a host and when the host may be used again.

The record of a host follows from the attempts of all jobs on it, in the order in which the
controller learned of their ends. The clocks of hosts do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_controller.core.trial_state import Attempt
from fleet_protos.errors import AGENT_STOPPED, ErrorKind
from fleet_protos.trial_types import Outcome

QUARANTINE_POINTS = 3  # points without a successful trial in between
_KEPT = 5
PROBE_FIRST_S, PROBE_MOST_S = 60.0, 3600.0

# One of these is enough: the hardware is broken for every job.
ALWAYS_HOST_FAULT = frozenset({"gpu_lost", "gpu_ecc_error", "nvlink_error", "fabric_manager_down"})

# The host is to blame, but the cause may pass: QUARANTINE_POINTS of them in a row quarantine it.
LIKELY_HOST_FAULT = frozenset(
    {
        "agent_out_of_files",
        "agent_restarted",
        "agent_state_lost",
        "gpu_busy_leftover",
        "lease_lost",
        "left_over_processes",
        "no_free_port",
        "preflight_disk",
    }
)

# The host is never to blame for these kinds. Any other kind counts if the same variant was launched
# successfully on another host, because otherwise the variant may be to blame.
_NEVER_HOST_FAULT = frozenset(
    {
        ErrorKind.NONE,
        ErrorKind.CONFIG,
        ErrorKind.SERVER_OOM,
        ErrorKind.GATE_VOIDED,
        ErrorKind.BUG,
        ErrorKind.LOAD_FAILED,
    }
)

# The first two follow from another host's end, the third from a user's order to stop: they do not
# count against the host.
NOT_COUNTED = frozenset({"nccl_peer_lost", "gang_hold_limit", AGENT_STOPPED})


@dataclass(frozen=True, slots=True)
class HostFailure:
    """A failed attempt that counts against its host with a number of points."""

    trial_id: str
    attempt: int
    failure_class: str
    points: int


@dataclass(frozen=True, slots=True)
class HostRecord:
    """The stored decisions about one host.

    - `aside`: why the host is quarantined; empty if it is not.
    - `setbacks`: how many times in a row the host was quarantined.
    """

    name: str
    drained: bool = False
    drain_reason: str = ""
    aside: str = ""
    aside_since_unix_ns: int = 0
    setbacks: int = 0
    failures: tuple[HostFailure, ...] = ()

    @property
    def closed_reason(self) -> str:
        """Return why the host is drained or quarantined, or an empty text."""
        if self.drained:
            return f"drained: {self.drain_reason}" if self.drain_reason else "drained"
        return f"quarantined: {self.aside}" if self.aside else ""


def failure_points(attempt: Attempt, works_elsewhere: bool) -> int:
    """Return how many points a finished attempt counts against its host.

    `works_elsewhere` says that the attempt's variant was launched successfully on another host.
    """
    if (
        attempt.outcome is not Outcome.FAILED
        or not attempt.agent_id
        or attempt.failure_class in NOT_COUNTED
    ):
        return 0
    if attempt.failure_class in ALWAYS_HOST_FAULT:
        return QUARANTINE_POINTS
    if attempt.failure_class in LIKELY_HOST_FAULT or attempt.kind in (
        ErrorKind.AGENT_RESTARTED,
        ErrorKind.HOST_UNREACHABLE,
    ):
        return 1
    return int(works_elsewhere and attempt.kind not in _NEVER_HOST_FAULT)


def after_attempt(
    record: HostRecord, trial_id: str, attempt: Attempt, weight: int, now_unix_ns: int
) -> HostRecord:
    """Return the record of a host after an attempt ended there. `weight` is the number that
    `failure_points` returns for the attempt.

    A successful attempt clears the failures, unless the host is quarantined. A sum of
    QUARANTINE_POINTS quarantines the host.
    """
    if attempt.outcome is Outcome.OK:
        return record if record.aside else replace(record, failures=(), setbacks=0)
    if not weight:
        return record
    failed = HostFailure(
        trial_id, attempt.number, attempt.failure_class or attempt.kind.name.lower(), weight
    )
    failures = (*record.failures, failed)[-_KEPT:]
    after = replace(record, failures=failures)
    if record.aside or sum(entry.points for entry in failures) < QUARANTINE_POINTS:
        return after
    return replace(
        after,
        aside=quarantine_reason(failures),
        aside_since_unix_ns=now_unix_ns,
        setbacks=record.setbacks + 1,
    )


def quarantine_reason(failures: tuple[HostFailure, ...]) -> str:
    """Return each failure class with the trials that failed with it, such as `gpu_lost in
    kimi-1a2b3c-b1-v2`.
    """
    trials: dict[str, list[str]] = {}
    for failed in failures:
        attempt = f" (attempt {failed.attempt})" if failed.attempt > 1 else ""
        trials.setdefault(failed.failure_class, []).append(f"{failed.trial_id}{attempt}")
    return "; ".join(
        f"{failure_class} in {', '.join(where)}" for failure_class, where in trials.items()
    )


def drain(record: HostRecord, why: str) -> HostRecord:
    """Return the record after a user drained the host."""
    return replace(record, drained=True, drain_reason=why)


def undrain(record: HostRecord) -> HostRecord:
    """Return the record after a user undrained the host. All failures are forgotten."""
    return HostRecord(record.name)


def put_on_probation(record: HostRecord) -> HostRecord:
    """Return the record after a check of a quarantined host found nothing. The next failure that
    counts against the host quarantines it again.
    """
    last = tuple(replace(failed, points=QUARANTINE_POINTS - 1) for failed in record.failures[-1:])
    return replace(record, aside="", aside_since_unix_ns=0, failures=last)


def probe_pause_s(record: HostRecord, probes: int, first_s: float = PROBE_FIRST_S) -> float:
    """Return the seconds until the next check of a quarantined host, counted from the start of the
    quarantine or from the last check.

    `probes` is the number of checks that found something. The pause doubles with each such check
    and with each quarantine in a row, up to PROBE_MOST_S.
    """
    doublings = min(max(record.setbacks - 1, 0) + probes, 10)
    return float(min(first_s * 2**doublings, max(PROBE_MOST_S, first_s)))


def host_state(closed: Mapping[str, bool]) -> str:
    """Return the state under which a host is counted: the first of away, drained, aside and busy
    that is True in `closed`, or else free.
    """
    return next((word for word in HOST_STATES[:-1] if closed.get(word)), "free")


HOST_STATES = ("away", "drained", "aside", "busy", "free")
