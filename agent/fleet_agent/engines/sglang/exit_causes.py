"""Explains how a server ended by its exit code, where its log names no cause."""

from __future__ import annotations

import signal
from dataclasses import replace

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis

_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_USAGE = 2  # argparse's
# docker-run(1): the runtime failed; the program in the image cannot be run; it does not exist
_NO_CONTAINER = (125, 126, 127)
_UNCLASSIFIED = ("", "unknown", "launch_crashed")
_CRASHED = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL)


def explain_silent_exit(exit_code: int) -> tuple[str, str]:
    """Return (failure class, cause) for a server whose log names no cause.

    `exit_code` is negative for a signal.
    """
    if exit_code in _KILLED:
        return (
            "killed",
            "it got SIGKILL, but not from its agent: the kernel's out-of-memory killer does that,"
            " see dmesg",
        )
    if exit_code == _USAGE:
        return (
            "argument_error",
            "this exit code means a wrong argument, but its log does not say which",
        )
    if exit_code in _CRASHED:
        return (
            "scheduler_crashed",
            f"it got {signal.Signals(-exit_code).name}, but its log names no cause",
        )
    return "unknown", "its log names no cause"


def explain_runtime_exit(diagnosis: Diagnosis, exit_code: int) -> Diagnosis:
    """Return the diagnosis of a container runtime's log, corrected where no container was started.

    The wording of such a log varies between runtimes; the exit code does not.
    """
    if exit_code not in _NO_CONTAINER or diagnosis.failure_class not in _UNCLASSIFIED:
        return diagnosis
    failure = FAILURES["container_not_started"]
    return replace(
        diagnosis, failure_class=failure.name, hint=failure.hint, avoid=failure.avoid, rank=""
    )
