"""Finds the container runtime of this host and the resource limits that it can set.

Sources: capabilities(7), where CAP_SYS_RESOURCE is bit 24; getrlimit(2).
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from fleet_agent.engines.sglang.launch.container_command import UNLIMITED, ContainerRuntime
from fleet_protos.errors import ConfigError

_MAY_RAISE_LIMITS = 1 << 24
_DOCKER_SOCKET = Path("/var/run/docker.sock")
_INITS = tuple(
    f"/usr/{folder}/catatonit"
    for folder in ("libexec/podman", "lib/podman", "local/libexec/podman", "libexec/catatonit")
)
_INFINIBAND = Path("/dev/infiniband")

# What a runtime's client needs to find its daemon, its storage and its settings. The server does
# not get these.
_CLIENT_VARIABLES = (
    "PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG",
    "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE",
)  # fmt: skip


def client_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the `docker` or `podman` process itself."""
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        **{name: env[name] for name in _CLIENT_VARIABLES if name in env},
    }


def find_runtime(asked: str, env: Mapping[str, str]) -> ContainerRuntime:
    """Return the container runtime that the job names. If it names none, return docker if docker
    has a daemon, else podman, else docker.

    Raises ConfigError if no such runtime is installed.
    """
    docker, podman = shutil.which("docker"), shutil.which("podman")
    has_daemon = _DOCKER_SOCKET.exists() or bool(
        env.get("DOCKER_HOST") or env.get("DOCKER_CONTEXT")
    )
    kinds = [asked] if asked else ["docker", "podman"] if has_daemon or not podman else ["podman"]
    for kind, program in (("docker", docker), ("podman", podman)):
        if kind in kinds and program:
            return _runtime(kind, program)
    runtime = asked or "docker or podman"
    raise ConfigError(
        f"engine.container: this host has no {runtime}",
        f"install {runtime}, or replace engine.container by engine.python",
    )


async def find_image_id(asked: str, image: str, env: Mapping[str, str]) -> str:
    """Return the id of the image that has this name on this host now. Return an empty text if the
    runtime does not know the image.

    The id is recorded because a tag can move to another image.
    """
    words = (find_runtime(asked, env).program, "image", "inspect", "--format", "{{.Id}}", image)
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, stdin=nothing, stdout=pipe, stderr=nothing, env=client_environment(env)
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:  # the time limit of the proof has passed
        process.kill()
        await process.wait()
        raise
    return (
        output.decode(errors="replace").strip().removeprefix("sha256:")
        if process.returncode == 0
        else ""
    )


def _runtime(kind: str, program: str) -> ContainerRuntime:
    infiniband = _INFINIBAND.exists()
    if kind == "docker":
        return ContainerRuntime(kind, program, has_infiniband=infiniband)
    has_init = bool(shutil.which("catatonit")) or any(Path(path).exists() for path in _INITS)
    return ContainerRuntime(
        kind, program, {} if _may_raise_limits() else _hard_limits(), has_init, infiniband
    )


def _may_raise_limits() -> bool:
    for line in _text("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _MAY_RAISE_LIMITS)
    return False


def _hard_limits() -> dict[str, int]:
    numbers = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "stack": resource.RLIMIT_STACK,
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
    }
    limits = {name: resource.getrlimit(number)[1] for name, number in numbers.items()}
    most = int(_text("/proc/sys/kernel/pid_max").strip() or 0)
    if most and (limits["nproc"] == UNLIMITED or limits["nproc"] > most):
        limits["nproc"] = most  # podman lowers its own limit to this
    return limits


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
