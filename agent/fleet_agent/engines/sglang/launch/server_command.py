"""Builds the whole command of an SGLang server that runs on the host or in a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang.launch import container_command
from fleet_agent.engines.sglang.launch.argv import (
    expand_home,
    expand_home_paths,
    gang_argv,
    to_argv,
)
from fleet_agent.engines.sglang.launch.cpu_binding import HostCpus, bind_cpus, choose_cpus
from fleet_agent.engines.sglang.launch.launch_environment import (
    GPUS_VARIABLE,
    LAUNCH_TOKEN_VARIABLE,
    server_environment,
)
from fleet_knowledge.release import Release, VersionRange
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import EngineSpec, TrialSpec, is_gang_member

HOST = "127.0.0.1"  # the load comes from this host too
_AGENT_ONLY_ARGS = ("model_path", "host", "port")
_GANG = ("nnodes", "node_rank", "dist_init_addr")
# Without it /metrics returns 404, and the verify steps and tokens of a run cannot be counted.
_UNLESS_SET = {"enable_metrics": True}
# `sglang serve`, by the wheels: absent in 0.5.4.post3, present in 0.5.5 - 0.5.23
_SERVE = VersionRange("0.5.5")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Holds what a launch needs to know about its host.

    `runtime`: the container runtime; None if the server needs none.
    `has_hub`: True if the Hugging Face cache exists on this host.
    `serve_program`: the path of the program `sglang` next to the server's Python; empty if missing.
    `sglang`: the version of SGLang installed for that Python; None if it was not read.
    """

    home: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: HostCpus = field(default_factory=HostCpus)
    runtime: container_command.ContainerRuntime | None = None
    client_environment: Mapping[str, str] = field(default_factory=dict)
    has_hub: bool = False
    serve_program: str = ""
    sglang: Release | None = None


# By the wheels 0.5.3 - 0.5.23: `--config` reads arguments from a file, so a key in it is never on
# the command line, which every user of the host can read. Earlier versions have no such file.
API_KEY_FILE_VERSIONS = VersionRange("0.5.3")
# With these a server has no key (several tokenizers), has two configuration files, or does not
# start (0.5.23: native gRPC).
_WITHOUT_KEY = ("config", "tokenizer_worker_num", "grpc_port", "grpc_mode", "smg_grpc_mode")
_GRPC_VARIABLE = "SGLANG_GRPC_PORT"


def server_command(spec: TrialSpec, place: LaunchPlace, facts: HostFacts) -> LaunchCommand:
    """Return the command of one launch.

    Raises ConfigError if the job sets what only the agent may set. Raises ConfigError if the launch
    needs something that this host does not have.
    """
    _check(spec)
    return (
        _container_command(spec.engine, place, facts)
        if spec.engine.container.image
        else _host_command(spec.engine, place, facts)
    )


def _check(spec: TrialSpec) -> None:
    engine = spec.engine
    ours = (*_AGENT_ONLY_ARGS, *(_GANG if engine.gang.nodes > 1 else ()))
    if taken := [name for name in ours if name in engine.args]:
        names = ", ".join(taken)
        raise ConfigError(
            f"engine.args of {spec.variant}: a job cannot set {names}",
            "remove this argument: the agent sets it",
        )
    if GPUS_VARIABLE in engine.env:
        raise ConfigError(
            f"engine.env of {spec.variant}: a job cannot set {GPUS_VARIABLE}",
            "remove this variable: engine.gpus is the number of GPUs, and the agent chooses which",
        )
    if not engine.model_path:
        raise ConfigError(f"variant {spec.variant} names no model", "set model.path in the job")
    if not engine.python and not engine.container.image:
        raise ConfigError(
            f"variant {spec.variant} names no Python with SGLang", "set engine.python in the job"
        )


def _host_command(engine: EngineSpec, place: LaunchPlace, facts: HostFacts) -> LaunchCommand:
    python = expand_home(engine.python, facts.home)
    chosen = choose_cpus(engine.cpu_binding, place.gpus, facts.cpus)
    bound = bind_cpus(chosen, facts.cpus, facts.sglang, own_nodes="numa_node" in engine.args)
    entry = (
        _serve_argv(python, facts)
        if engine.entry == "serve"
        else (python, "-m", "sglang.launch_server")
    )
    argv = (*bound.prefix, *entry, *_server_argv(engine, place, facts.home), *bound.words)
    return LaunchCommand(
        argv,
        server_environment(facts.environment, engine.env, place.gpus, place.token),
        str(place.folder),
        key_file=str(place.key_file) if _takes_key(engine, facts.sglang) else "",
    )


def _takes_key(engine: EngineSpec, version: Release | None) -> bool:
    """Return whether this launch can give the server an API key in a configuration file.

    It cannot if the version is unknown or too old, if the job sets an option of `_WITHOUT_KEY` or a
    gRPC port, or if the node serves no requests because its rank is 1 or above.
    """
    return (
        version is not None
        and API_KEY_FILE_VERSIONS.contains(version)
        and not is_gang_member(engine.gang)
        and not any(engine.args.get(name) for name in _WITHOUT_KEY)
        and _GRPC_VARIABLE not in engine.env
    )


def _serve_argv(python: str, facts: HostFacts) -> tuple[str, ...]:
    """Return the words that start `sglang serve` of the environment that `python` belongs to."""
    if not _SERVE.contains(facts.sglang):
        message = (
            f"the SGLang of {python} is {facts.sglang}, but `sglang serve` needs"
            f" {_SERVE.first} or newer"
        )
        raise ConfigError(message, "set engine.entry: launch_server")
    if not facts.serve_program:
        message = f"`sglang serve` needs the program `sglang`, which is missing next to {python}"
        raise ConfigError(
            message, "set engine.entry: launch_server, or install SGLang for this Python"
        )
    return (facts.serve_program, "serve")


def _container_command(engine: EngineSpec, place: LaunchPlace, facts: HostFacts) -> LaunchCommand:
    if facts.runtime is None:
        raise ConfigError(
            "engine.container: this host has neither docker nor podman",
            "install docker or podman, or replace engine.container by engine.python",
        )
    hub = container_command.hub_folder(engine, facts.home)
    if (
        container_command.needs_hub(engine)
        and not container_command.is_in_mount(engine, hub)
        and not facts.has_hub
    ):
        raise ConfigError(
            f"{engine.model_path} is a Hugging Face name, but this host has no cache folder {hub}",
            f"create the folder: mkdir -p {hub}",
        )
    program, first = container_command.python_argv(engine.container, engine.entry)
    chosen = choose_cpus(engine.cpu_binding, place.gpus, facts.cpus)
    inside = container_command.ContainerProgram(
        program, (*first, *_server_argv(engine, place, facts.home)), chosen
    )
    argv = container_command.run_argv(facts.runtime, engine, place, facts.home, inside)
    env = {
        **container_command.server_variables(engine, place, facts.home),
        LAUNCH_TOKEN_VARIABLE: place.token,
    }
    client = {**facts.client_environment, LAUNCH_TOKEN_VARIABLE: place.token}
    return LaunchCommand(
        argv, env, str(PurePosixPath(place.folder)), str(container_command.env_file(place)), client
    )


def _server_argv(engine: EngineSpec, place: LaunchPlace, home: str) -> tuple[str, ...]:
    return (
        *("--model-path", expand_home(engine.model_path, home)),
        *("--host", HOST, "--port", str(place.port)),
        *gang_argv(engine.gang),
        *to_argv({**_UNLESS_SET, **expand_home_paths(engine.args, home)}),
    )
