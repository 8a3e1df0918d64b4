"""Owns what the exit code of a dead server says where its log does not, and where a container
runtime's log is read otherwise. Pure.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis

_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_USAGE = 2  # argparse's
_NO_CONTAINER = (
    125,
    126,
    127,
    # docker-run(1): of the runtime itself, of a program in the image that cannot be run or is not there
)
_UNCLASSIFIED = ("", "unknown", "launch_crashed")
_CRASHED = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL)


def explain_silent_exit(exit_code: int) -> tuple[str, str]:
    """(failure class, cause) of a server whose log names no cause. `exit_code` is negative for a
    signal.
    """
    if exit_code in _KILLED:
        return (
            "killed",
            "it got SIGKILL, and not from its agent: the host's out-of-memory killer does that, see dmesg",
        )
    if exit_code == _USAGE:
        return "argument_error", "that is how a wrong argument ends, and its log does not say which"
    if exit_code in _CRASHED:
        return (
            "scheduler_crashed",
            f"it got {signal.Signals(-exit_code).name}, and its log names no cause",
        )
    return "unknown", "its log names no cause"


def explain_runtime_exit(diagnosis: Diagnosis, exit_code: int) -> Diagnosis:
    """What a log tells when it is that of a container runtime which started no container: its exit
    code says so, its words vary.
    """
    if exit_code not in _NO_CONTAINER or diagnosis.failure_class not in _UNCLASSIFIED:
        return diagnosis
    failure = FAILURES["container_not_started"]
    return replace(
        diagnosis, failure_class=failure.name, hint=failure.hint, avoid=failure.avoid, rank=""
    )
