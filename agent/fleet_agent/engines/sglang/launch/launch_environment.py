"""Builds the whole environment of a launched server."""

from __future__ import annotations

from collections.abc import Mapping

# An agent that lost its journal finds its server by this variable.
LAUNCH_TOKEN_VARIABLE = "BENCHFLEET_LAUNCH"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


def server_environment(
    host: Mapping[str, str], job: Mapping[str, str], gpus: tuple[int, ...], token: str
) -> dict[str, str]:
    """Return the environment of a server: PATH, HOME, LANG and TMPDIR of the host, then the job's
    variables, the launch token and the GPUs.

    The server gets no other variable of the host. A server without GPUs gets an empty
    CUDA_VISIBLE_DEVICES, so that it sees no GPU.
    """
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    env |= {name: host[name] for name in _KEPT if name in host}
    env |= job
    env[LAUNCH_TOKEN_VARIABLE] = token
    env[GPUS_VARIABLE] = ",".join(map(str, gpus))
    return env
