"""Owns the command line of a server in a container: facts in, words for docker or podman out. Pure;
starts nothing, reads no file.

Sources: docker-run(1) 20.10 - 28, podman-run(1) 4.3 - 5; GPUs by NVIDIA's Container Toolkit:
`--gpus` for docker, CDI names for podman. The variables of the server stand in a file of its own,
never in these words: a command line is readable by every user of the host.
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
_STACK_BYTES = 67108864  # what SGLang's and NVIDIA's own images ask for
_HUB_CACHE = ".cache/huggingface"
_HUB_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME")


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """The container runtime of a host. `hard_limits`: what podman may not go above there; empty: it
    may set any, as docker's daemon may.
    """

    kind: str  # docker | podman
    program: str  # its full path
    hard_limits: Mapping[str, int] = field(default_factory=dict)
    has_init: bool = True
    has_infiniband: bool = False


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """What runs in the container: its program and words, and what of the host it needs."""

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
    """`docker run …` of one launch. Raises ConfigError for a mount that cannot be written."""
    return (
        *(runtime.program, "run", "--rm"),
        *(("--init",) if runtime.has_init else ()),
        *(
            "--name",
            container_name(place.token),
            "--label",
            f"{LABEL}={place.token}",
            "--cidfile",
            str(id_file(runtime.kind, place)),
        ),
        *(
            "--log-driver",
            "none",
            "--network",
            "host",
        ),  # what it prints comes to us, and is kept once
        *(
            ("--shm-size", engine.container.shm_size)
            if engine.container.shm_size
            else ("--ipc", "host")
        ),
        *_limits(runtime),
        *_devices(runtime, engine, place.gpus),
        *_rights(runtime, engine, place.gpus, inside.choice),
        *(word for mount in mounts(engine, home) for word in ("--mount", mount)),
        *(
            "--env-file",
            str(env_file(place)),
            "--entrypoint",
            inside.entrypoint,
            engine.container.image,
            *inside.words,
        ),
    )


def container_name(token: str) -> str:
    """A name for `docker ps`, with a digest so that two tokens never share one."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", token).strip("-.")
    return f"benchfleet-{readable[:80]}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def id_file(kind: str, place: LaunchPlace) -> PurePosixPath:
    """Where the runtime writes the container's id; its name tells which runtime it was."""
    return PurePosixPath(place.folder) / f"{kind}.{_digest(place)}.cid"


def env_file(place: LaunchPlace) -> PurePosixPath:
    """Where the server's variables stand for the runtime while it runs."""
    return PurePosixPath(place.folder) / f"container.{_digest(place)}.env"


def _digest(place: LaunchPlace) -> str:
    return hashlib.sha256(f"{place.token} {place.port}".encode()).hexdigest()[
        :8
    ]  # the runtime refuses an id file that is there


def _limits(runtime: ContainerRuntime) -> Iterator[str]:
    wanted = {"memlock": UNLIMITED, "stack": _STACK_BYTES}
    wanted |= {
        name: UNLIMITED for name in ("nofile", "nproc") if name in runtime.hard_limits
    }  # podman's own defaults would be refused
    for name, limit in wanted.items():
        hard = runtime.hard_limits.get(name, UNLIMITED)
        least = min((value for value in (limit, hard) if value != UNLIMITED), default=UNLIMITED)
        yield from ("--ulimit", f"{name}={least}")


def _devices(runtime: ContainerRuntime, engine: EngineSpec, gpus: tuple[int, ...]) -> Iterator[str]:
    if gpus and runtime.kind == "docker":
        yield from (
            "--gpus",
            f'"device={",".join(map(str, gpus))}"',
        )  # docker reads the value as CSV: the quotes are its own
    elif gpus:
        for gpu in gpus:
            yield from ("--device", f"nvidia.com/gpu={gpu}")
    if engine.gang.nodes > 1 and runtime.has_infiniband:
        yield from ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK")


def _rights(
    runtime: ContainerRuntime, engine: EngineSpec, gpus: tuple[int, ...], choice: CpuChoice
) -> Iterator[str]:
    if gpus or choice.nodes:
        yield from ("--cap-add", "SYS_NICE")  # without it SGLang binds CPUs only and no memory
    if runtime.kind == "podman":
        yield from ("--security-opt", "label=disable")  # SELinux would hide the mounts and the GPUs
    if choice.cpus:
        yield from ("--cpuset-cpus", format_cpu_list(choice.cpus))
    if choice.nodes:
        yield from ("--cpuset-mems", format_cpu_list(choice.nodes))


def mounts(engine: EngineSpec, home: str) -> tuple[str, ...]:
    """The job's mounts by their place, then each path of the host that an argument names, at the
    same place, and the hub's cache.
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
    """True when a mount of the job holds this path of the container."""
    return any(PurePosixPath(path).is_relative_to(inside) for inside in engine.container.mounts)


def host_paths(engine: EngineSpec, home: str) -> dict[str, bool]:
    """The model's path and every argument that is a path of the host, and whether it is only read:
    folders to write to end in `_dir`.
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
    """True when the model, or its draft, goes by a name of the hub and not by a path."""
    names = (engine.model_path, engine.args.get("speculative_draft_model_path"))
    return any(
        isinstance(name, str) and name and not name.startswith(("/", "~/", "./", "../"))
        for name in names
    )


def hub_folder(engine: EngineSpec, home: str) -> str:
    """The hub's cache as the server sees it: where the job's variables say, else where it is on the
    host.
    """
    configured = next(
        (engine.env[name] for name in _HUB_VARIABLES if engine.env.get(name, "").startswith("/")),
        "",
    )
    return configured or f"{home.rstrip('/')}/{_HUB_CACHE}"


def server_variables(engine: EngineSpec, place: LaunchPlace, home: str) -> dict[str, str]:
    """The whole environment of a server in a container, over what its image has: nothing of the
    host's is in it.
    """
    env: dict[str, str] = {}
    if needs_hub(engine) and not any(name in engine.env for name in _HUB_VARIABLES):
        env["HF_HOME"] = hub_folder(engine, home)
    if not place.gpus:
        env |= {
            "CUDA_VISIBLE_DEVICES": "",
            "NVIDIA_VISIBLE_DEVICES": "void",
        }  # an image may ask the runtime for all GPUs
    env |= engine.env
    if broken := [name for name, value in env.items() if "\n" in value or "\r" in value]:
        message = f"engine.env.{broken[0]} holds a line end, which no variable of a container can"
        raise ConfigError(message, "write it without, or mount a file and name that")
    return env


def python_argv(container: Container, entry: str) -> tuple[str, tuple[str, ...]]:
    """(program, first words) of an entry point inside the image."""
    python = container.python or "python3"
    if entry != "serve":
        return python, ("-m", "sglang.launch_server")
    folder, slash, _ = python.rpartition("/")
    return f"{folder}{slash}sglang", ("serve",)


def _source(outside: str, home: str) -> tuple[str, bool]:
    path, read_only = (
        (outside.removesuffix(":ro"), True)
        if outside.endswith(":ro")
        else (outside.removesuffix(":rw"), False)
    )
    return str(expand_home(path, home)), read_only


def _mount(inside: str, outside: str, read_only: bool) -> str:
    if any(mark in f"{inside}{outside}" for mark in ',"\n'):
        message = f"the path {outside} cannot be mounted at {inside}: it has a comma, a quote or a line end"
        raise ConfigError(message, "give it another name")
    return f"type=bind,source={outside},target={inside}{',readonly' if read_only else ''}"


def _mount_root(path: str) -> str:
    """The folder to mount for a path: a snapshot of the hub's cache is links to files beside it, so
    the whole model's folder.
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
