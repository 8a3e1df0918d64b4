"""Builds the docker or podman command line of a server in a container.

The server's environment variables are passed in a file, because every user of the host can read a
command line. GPUs are passed as NVIDIA's Container Toolkit defines: `--gpus` for docker, CDI names
for podman. Sources: docker-run(1) 20.10 - 28, podman-run(1) 4.3 - 5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.sglang.launch.argv import expand_home
from fleet_agent.engines.sglang.launch.cpu_binding import CpuChoice, format_cpu_list
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Container, EngineSpec

LABEL = "benchfleet.launch"
UNLIMITED = -1
_STACK_BYTES = 67108864  # recommended for SGLang's and NVIDIA's images
_HUB_CACHE = ".cache/huggingface"
_HUB_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME")


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """Holds what a host's container runtime is and can do.

    `hard_limits` are the resource limits that podman cannot exceed on this host. The map is empty
    if the runtime can set any limit, as docker's daemon can.
    """

    kind: str  # docker | podman
    program: str  # its full path
    hard_limits: Mapping[str, int] = field(default_factory=dict)
    has_init: bool = True
    has_infiniband: bool = False


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """Holds what runs in the container: its program, its arguments and its CPUs."""

    entrypoint: str
    words: tuple[str, ...]
    choice: CpuChoice = field(default_factory=CpuChoice)


def run_argv(
    runtime: ContainerRuntime,
    engine: EngineSpec,
    place: LaunchPlace,
    home: str,
    inside: ContainerProgram,
) -> tuple[str, ...]:
    """Return the `docker run …` or `podman run …` command line of one launch.

    Raises ConfigError for a mount whose path the runtime's syntax cannot express.
    """
    shm_size = engine.container.shm_size
    return (
        *(runtime.program, "run", "--rm"),
        *(("--init",) if runtime.has_init else ()),
        *("--name", container_name(place.token), "--label", f"{LABEL}={place.token}"),
        *("--cidfile", str(id_file(runtime.kind, place))),
        *("--log-driver", "none"),  # the agent stores the output; the runtime need not
        *("--network", "host"),
        *(("--shm-size", shm_size) if shm_size else ("--ipc", "host")),
        *_limits(runtime),
        *_devices(runtime, engine, place.gpus),
        *_rights(runtime, place.gpus, inside.choice),
        *(word for mount in mounts(engine, home) for word in ("--mount", mount)),
        *("--env-file", str(env_file(place)), "--entrypoint", inside.entrypoint),
        *(engine.container.image, *inside.words),
    )


def container_name(token: str) -> str:
    """Return the container's name for `docker ps`. It shows the token, and ends in a digest so that
    two tokens never share a name.
    """
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", token).strip("-.")
    return f"benchfleet-{readable[:80]}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def id_file(kind: str, place: LaunchPlace) -> PurePosixPath:
    """Return the file to which the runtime writes the container's id. The file's name starts with
    `kind`.
    """
    return PurePosixPath(place.folder) / f"{kind}.{_digest(place)}.cid"


def env_file(place: LaunchPlace) -> PurePosixPath:
    """Return the file from which the runtime reads the server's environment."""
    return PurePosixPath(place.folder) / f"container.{_digest(place)}.env"


def _digest(place: LaunchPlace) -> str:
    # The port makes the name new at each launch: the runtime rejects an id file that exists.
    return hashlib.sha256(f"{place.token} {place.port}".encode()).hexdigest()[:8]


def _limits(runtime: ContainerRuntime) -> Iterator[str]:
    wanted = {"memlock": UNLIMITED, "stack": _STACK_BYTES}
    # podman's own defaults may exceed the hard limits, which the kernel refuses
    wanted |= {name: UNLIMITED for name in ("nofile", "nproc") if name in runtime.hard_limits}
    for name, limit in wanted.items():
        hard = runtime.hard_limits.get(name, UNLIMITED)
        least = min((value for value in (limit, hard) if value != UNLIMITED), default=UNLIMITED)
        yield from ("--ulimit", f"{name}={least}")


def _devices(runtime: ContainerRuntime, engine: EngineSpec, gpus: tuple[int, ...]) -> Iterator[str]:
    if gpus and runtime.kind == "docker":
        # docker parses the value as CSV and needs the quotes
        yield from ("--gpus", f'"device={",".join(map(str, gpus))}"')
    elif gpus:
        for gpu in gpus:
            yield from ("--device", f"nvidia.com/gpu={gpu}")
    if engine.gang.nodes > 1 and runtime.has_infiniband:
        yield from ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK")


def _rights(runtime: ContainerRuntime, gpus: tuple[int, ...], choice: CpuChoice) -> Iterator[str]:
    if gpus or choice.nodes:
        yield from ("--cap-add", "SYS_NICE")  # without it SGLang binds CPUs but not memory
    if runtime.kind == "podman":
        yield from ("--security-opt", "label=disable")  # SELinux would hide the mounts and the GPUs
    if choice.cpus:
        yield from ("--cpuset-cpus", format_cpu_list(choice.cpus))
    if choice.nodes:
        yield from ("--cpuset-mems", format_cpu_list(choice.nodes))


def mounts(engine: EngineSpec, home: str) -> tuple[str, ...]:
    """Return the `--mount` values of a server, in this order:

    - the job's mounts, sorted by their path in the container;
    - each host path that an argument names, at the same path in the container, unless an earlier
      mount contains it;
    - the Hugging Face cache, if the model or its draft has a Hugging Face name.
    """
    written = {
        inside: _source(outside, home)
        for inside, outside in sorted(engine.container.mounts.items())
    }
    found = [_mount(inside, *source) for inside, source in written.items()]
    taken = [PurePosixPath(inside) for inside in written]
    for path, read_only in host_paths(engine, home).items():
        if not any(PurePosixPath(path).is_relative_to(inside) for inside in taken):
            found.append(_mount(path, path, read_only))
            taken.append(PurePosixPath(path))
    hub = hub_folder(engine, home)
    if needs_hub(engine) and not is_in_mount(engine, hub):
        found.append(_mount(hub, hub, False))
    return tuple(found)


def is_in_mount(engine: EngineSpec, path: str) -> bool:
    """Return whether one of the job's mounts contains this path of the container."""
    return any(PurePosixPath(path).is_relative_to(inside) for inside in engine.container.mounts)


def host_paths(engine: EngineSpec, home: str) -> dict[str, bool]:
    """Return each host path that the model or an argument names. The value is True if the container
    gets the path read-only.

    Every path is read-only, except a folder that an argument ending in `_dir` names: the server
    writes to it.
    """
    named = {"model_path": engine.model_path, **engine.args}
    at_home = {
        name: expand_home(value, home)
        for name, value in named.items()
        if name.endswith(("_path", "_file", "_dir"))
    }
    paths = {
        name: path
        for name, path in at_home.items()
        if isinstance(path, str) and path.startswith("/")
    }
    return {_mount_root(path): not name.endswith("_dir") for name, path in paths.items()}


def needs_hub(engine: EngineSpec) -> bool:
    """Return whether the server loads its model or draft model by a Hugging Face name."""
    names = (engine.model_path, engine.args.get("speculative_draft_model_path"))
    return any(
        isinstance(name, str) and name and not name.startswith(("/", "~/", "./", "../"))
        for name in names
    )


def hub_folder(engine: EngineSpec, home: str) -> str:
    """Return the path of the Hugging Face cache in the container.

    The job's environment variables may set it. The default is in `home`.
    """
    configured = next(
        (engine.env[name] for name in _HUB_VARIABLES if engine.env.get(name, "").startswith("/")),
        "",
    )
    return configured or f"{home.rstrip('/')}/{_HUB_CACHE}"


def server_variables(engine: EngineSpec, place: LaunchPlace, home: str) -> dict[str, str]:
    """Return the environment variables that a container gets in addition to those of its image.

    They contain nothing of the host's environment. Raises ConfigError for a value with a line end.
    """
    env: dict[str, str] = {}
    if needs_hub(engine) and not any(name in engine.env for name in _HUB_VARIABLES):
        env["HF_HOME"] = hub_folder(engine, home)
    if not place.gpus:
        # an image may ask the runtime for all GPUs
        env |= {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    env |= engine.env
    name = next((name for name, value in env.items() if "\n" in value or "\r" in value), "")
    if name:
        message = (
            f"engine.env.{name} contains a line end, which the environment file of a container"
            " cannot express"
        )
        raise ConfigError(
            message,
            "remove the line end, or mount a file with the value and pass the path of the file",
        )
    return env


def python_argv(container: Container, entry: str) -> tuple[str, tuple[str, ...]]:
    """Return (program, first words) of the command that starts SGLang in the image."""
    python = container.python or "python3"
    if entry != "serve":
        return python, ("-m", "sglang.launch_server")
    folder, slash, _ = python.rpartition("/")
    return f"{folder}{slash}sglang", ("serve",)


def _source(outside: str, home: str) -> tuple[str, bool]:
    read_only = outside.endswith(":ro")
    path = outside.removesuffix(":ro" if read_only else ":rw")
    return str(expand_home(path, home)), read_only


def _mount(inside: str, outside: str, read_only: bool) -> str:
    if any(mark in f"{inside}{outside}" for mark in ',"\n'):
        message = (
            f"cannot mount {outside} at {inside}: one of these paths contains a comma, a quote"
            " or a line end"
        )
        raise ConfigError(message, "rename the folder, or mount it at another path")
    return f"type=bind,source={outside},target={inside}{',readonly' if read_only else ''}"


def _mount_root(path: str) -> str:
    """Return the folder to mount, so that the container can read `path`.

    A snapshot in the Hugging Face cache links to files outside its folder, so the whole folder of
    the model is mounted.
    """
    parts = PurePosixPath(path).parts
    at = next(
        (index for index, part in enumerate(parts) if part.startswith(("models--", "datasets--"))),
        None,
    )
    return (
        str(PurePosixPath(*parts[: at + 1]))
        if at is not None and "snapshots" in parts[at:]
        else path
    )
