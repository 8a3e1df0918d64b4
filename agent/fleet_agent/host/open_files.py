"""Checks whether the agent may open as many files as another trial needs."""

from __future__ import annotations

import errno
import os
import resource

LEAST_FREE = 64  # for one trial: pidfds of its processes, pipes, logs, connections
HINT = (
    "restart the agent; if it runs out again, raise LimitNOFILE= of its unit (ulimit -n) and look "
    "at `ls -l /proc/PID/fd` for what is open"
)


def is_out_of_files(error: OSError) -> bool:
    """Return whether the error says that this process or the system may open no more files."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def describe_file_shortage() -> str:
    """Return why the agent cannot open the files of another trial. Empty if it can."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError as error:
        return (
            f"the agent can open no more files: {error.strerror}" if is_out_of_files(error) else ""
        )
    if limit == resource.RLIM_INFINITY or limit - used >= LEAST_FREE:
        return ""
    return (
        f"the agent has {used} files open of the {limit} that it may open, and a trial needs "
        f"{LEAST_FREE}"
    )
