"""Explains from the exit code why a server ended, if the server's log names no cause."""

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

    A negative `exit_code` is minus the number of the signal that ended the server.
    """
    if exit_code in _KILLED:
        return (
            "killed",
            "the server got SIGKILL, and its agent did not send it: the kernel's out-of-memory"
            " killer may have, see dmesg",
        )
    if exit_code == _USAGE:
        return (
            "argument_error",
            "the exit code means a wrong argument, but the server's log does not say which one",
        )
    if exit_code in _CRASHED:
        name = signal.Signals(-exit_code).name
        return "scheduler_crashed", f"the server got {name}, but its log names no cause"
    return "unknown", "the server's log names no cause"


def explain_runtime_exit(diagnosis: Diagnosis, exit_code: int) -> Diagnosis:
    """Return the diagnosis of a container's log, corrected if the exit code shows that no container
    was started.

    The exit code is the same for all container runtimes; the wording of their logs differs.
    """
    if exit_code not in _NO_CONTAINER or diagnosis.failure_class not in _UNCLASSIFIED:
        return diagnosis
    failure = FAILURES["container_not_started"]
    return replace(
        diagnosis, failure_class=failure.name, hint=failure.hint, avoid=failure.avoid, rank=""
    )
