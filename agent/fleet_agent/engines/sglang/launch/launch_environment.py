"""Owns the whole environment of a launched server: what is not named here does not reach it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

LAUNCH_TOKEN_VARIABLE = (
    "BENCHFLEET_LAUNCH"  # by this an agent that lost its journal finds its server
)
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


def server_environment(
    host: Mapping[str, str], job: Mapping[str, str], gpus: tuple[int, ...], token: str
) -> dict[str, str]:
    """Four variables of the host, then the job's, then the launch token and the GPUs it was given;
    none given: it sees none at all.
    """
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    env |= {name: host[name] for name in _KEPT if name in host}
    env |= job
    env[LAUNCH_TOKEN_VARIABLE] = token
    env[GPUS_VARIABLE] = ",".join(map(str, gpus))
    return env
