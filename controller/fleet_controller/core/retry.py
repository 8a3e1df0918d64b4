"""Decides by the error kind whether and when a failed trial is tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_protos.errors import ErrorKind


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The rule for failures of one kind. A trial with at most `retries` such failures may be tried
    again, after a pause of `pause_s` seconds.
    """

    retries: int
    pause_s: float = 0.0


NEVER = RetryRule(0)

# Failures that would repeat are never retried: the user's configuration, too little memory, results
# that gates voided, our own bugs.
RULES: Mapping[ErrorKind, RetryRule] = {
    ErrorKind.CONFIG: NEVER,
    ErrorKind.DEPLOY_FAILED: NEVER,
    ErrorKind.SERVER_OOM: NEVER,
    ErrorKind.GATE_VOIDED: NEVER,
    ErrorKind.BUG: NEVER,
    ErrorKind.SERVER_LAUNCH: RetryRule(1, pause_s=1.0),
    ErrorKind.SERVER_UNHEALTHY: RetryRule(1, pause_s=1.0),
    ErrorKind.SERVER_EXITED: RetryRule(2, pause_s=1.0),
    ErrorKind.LOAD_FAILED: RetryRule(1),
    ErrorKind.CONFLICT: RetryRule(3, pause_s=1.0),
    ErrorKind.AGENT_RESTARTED: RetryRule(3),
    ErrorKind.HOST_UNREACHABLE: RetryRule(3, pause_s=5.0),
}

# How often an interrupted trial is repeated; more than a person would, so that it ends.
INTERRUPTIONS_MAX = 100
# Failures that repeat whenever the same variant is launched on the same host.
FOR_GOOD = frozenset({ErrorKind.CONFIG, ErrorKind.DEPLOY_FAILED, ErrorKind.SERVER_OOM})
# So many void runs in a row end a trial; with fewer finished runs, a gate voided the launch.
VOID_RUNS = 3


def rule_for(kind: ErrorKind) -> RetryRule:
    """Return the rule for an error kind. A kind without a rule is never retried."""
    return RULES.get(kind, NEVER)


def may_retry(failures: Sequence[ErrorKind]) -> bool:
    """Return whether a trial with these failures may be tried again. Only failures of the same kind
    as the last one count.
    """
    return bool(failures) and failures.count(failures[-1]) <= rule_for(failures[-1]).retries
