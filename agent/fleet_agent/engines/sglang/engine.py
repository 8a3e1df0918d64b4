"""Owns the adapter of SGLang: its command line, and how a trial's server is looked at. Launches nothing itself."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

from fleet_agent.engines.engine import LaunchCommand, Place
from fleet_agent.engines.sglang import container, effective, explain, log, readiness, versions
from fleet_agent.engines.sglang.arguments import at_home, gang_words, under_home, words
from fleet_agent.engines.sglang.binding import Choice, HostCpus, bind, choose
from fleet_agent.engines.sglang.cpus import read_host_cpus
from fleet_agent.engines.sglang.environment import GPUS, LAUNCH, server_environment
from fleet_agent.engines.sglang.runtimes import client_environment, find_runtime, image_id
from fleet_knowledge.release import Between, Release
from fleet_protos.errors import ConfigError
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial import TrialSpec

_HOST = "127.0.0.1"  # what is measured here is driven from here
_OURS = ("model_path", "host", "port")
_GANG = ("nnodes", "node_rank", "dist_init_addr")
_SERVE = Between("0.5.5")  # `sglang serve`: not in 0.5.4.post3, in 0.5.5 - 0.5.23, by their wheels


class SglangEngine:
    """An Engine whose servers are `python -m sglang.launch_server` or `sglang serve`, on the host or in a container."""

    launches = True

    def command(self, spec: TrialSpec, place: Place) -> LaunchCommand:
        """The process for this trial. Raises ConfigError when the job sets what only the agent may set, or what this host has not."""
        self._check(spec)
        return _contained(spec, place) if spec.engine.container.image else _on_host(spec, place)

    def _check(self, spec: TrialSpec) -> None:
        engine = spec.engine
        ours = (*_OURS, *(_GANG if engine.gang.nodes > 1 else ()))
        if taken := [name for name in ours if name in engine.args]:
            raise ConfigError(f"engine.args of {spec.variant}: {', '.join(taken)} cannot be set there", "the agent sets it; remove it")
        if GPUS in engine.env:
            raise ConfigError(f"engine.env of {spec.variant}: {GPUS} cannot be set there", "engine.gpus says how many; remove it")
        if not engine.model_path:
            raise ConfigError(f"variant {spec.variant} names no model", "set model.path in the job")
        if not engine.python and not engine.container.image:
            raise ConfigError(f"variant {spec.variant} names no Python with SGLang", "set engine.python in the job")

    def url(self, spec: TrialSpec, place: Place) -> str:
        """Where it will answer."""
        return f"http://{_HOST}:{place.port}"

    async def ready(self, spec: TrialSpec, url: str) -> str:
        """Empty when it is healthy, the model asked for, and completed a request. Raises ServerFailed for another server."""
        return await readiness.look(url, model_path=under_home(spec.engine.model_path, str(Path.home())))

    async def prove(self, spec: TrialSpec, url: str, log_path: Path) -> ConfigurationProved:
        """What took effect, from /server_info, the log and what is installed. Raises ServerFailed when it stopped answering."""
        home = str(Path.home())
        info = await readiness.server_info(url)
        proved = effective.proof(at_home(spec.engine.args, home), spec.engine.env, info, log.whole(log_path))
        installed = await _installed(spec, home)
        return replace(proved, versions={**installed, **proved.versions})

    def explain(self, log_path: Path, exit_code: int) -> tuple[str, str]:
        """(failure class, cause) of a server that ended."""
        return explain.explain(log.tail(log_path), exit_code)


def _on_host(spec: TrialSpec, place: Place) -> LaunchCommand:
    engine, home = spec.engine, str(Path.home())
    python = under_home(engine.python, home)
    host = read_host_cpus() if engine.cpu_binding not in ("", "none") else HostCpus()
    chosen = choose(engine.cpu_binding, place.gpus, host)
    version = _version_of(python) if engine.entry == "serve" or chosen.nodes else None
    bound = bind(chosen, host, version, own_nodes="numa_node" in engine.args)
    entry = _serve(python, version) if engine.entry == "serve" else (python, "-m", "sglang.launch_server")
    argv = (*bound.prefix, *entry, *_server_words(spec, place, home), *bound.words)
    return LaunchCommand(argv, server_environment(os.environ, engine.env, place.gpus, place.token), str(place.folder))


def _contained(spec: TrialSpec, place: Place) -> LaunchCommand:
    engine, home = spec.engine, str(Path.home())
    runtime = find_runtime(engine.container.runtime, os.environ)
    hub = container.hub_folder(engine, home)
    if container.needs_hub(engine) and not container.has_place(engine, hub) and not Path(hub).is_dir():
        raise ConfigError(f"{engine.model_path} is a name of the hub, and this host has no cache for it at {hub}", f"mkdir -p {hub}")
    bound = engine.cpu_binding not in ("", "none")
    chosen = choose(engine.cpu_binding, place.gpus, read_host_cpus()) if bound else Choice()
    program, words = container.python_words(engine.container, engine.entry)
    inside = container.Inside(program, (*words, *_server_words(spec, place, home)), chosen)
    env = {**container.server_variables(engine, place, home), LAUNCH: place.token}
    client = {**client_environment(os.environ), LAUNCH: place.token}
    argv = container.run_words(runtime, engine, place, home, inside)
    return LaunchCommand(argv, env, str(place.folder), str(container.env_file(place)), client)


def _server_words(spec: TrialSpec, place: Place, home: str) -> tuple[str, ...]:
    engine = spec.engine
    return (
        *("--model-path", under_home(engine.model_path, home), "--host", _HOST, "--port", str(place.port)),
        *gang_words(engine.gang),
        *words(at_home(engine.args, home)),
    )


def _serve(python: str, version: Release | None) -> tuple[str, ...]:
    """`sglang serve` of the environment of that Python."""
    if not _SERVE.holds(version):
        told = f"SGLang {version} beside {python} has no `sglang serve`: it came with {_SERVE.first}"
        raise ConfigError(told, "write entry: launch_server")
    found = shutil.which(python)
    program = Path(python if "/" in python or not found else found).with_name("sglang")
    if not os.access(program, os.X_OK):
        told = f"there is no program {program}, which `sglang serve` needs"
        raise ConfigError(told, "write entry: launch_server, or install SGLang there")
    return (str(program), "serve")


async def _installed(spec: TrialSpec, home: str) -> dict[str, str]:
    """What is beside the server's Python; of a container, which image it is."""
    if image := spec.engine.container.image:
        found = await image_id(spec.engine.container.runtime, image, os.environ)
        return {"image": found} if found else {}
    python = shutil.which(under_home(spec.engine.python, home))
    return await asyncio.to_thread(versions.installed, Path(python)) if python else {}


def _version_of(python: str) -> Release | None:
    found = shutil.which(python)
    return Release.read(versions.installed(Path(found), ("sglang",)).get("sglang", "")) if found else None
