"""Adapts SGLang to the agent: builds its launch command, probes it and proves its configuration."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang import readiness
from fleet_agent.engines.sglang.launch import container_command
from fleet_agent.engines.sglang.launch.argv import expand_home, expand_home_paths, to_argv
from fleet_agent.engines.sglang.launch.container_runtimes import (
    client_environment,
    find_image_id,
    find_runtime,
)
from fleet_agent.engines.sglang.launch.cpu_binding import HostCpus
from fleet_agent.engines.sglang.launch.host_cpus import read_host_cpus
from fleet_agent.engines.sglang.launch.server_command import HOST, HostFacts, server_command
from fleet_agent.engines.sglang.proof import configuration_proof, installed_versions
from fleet_agent.engines.sglang.proof.configuration_proof import LaunchToProve
from fleet_knowledge.release import Release
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec, is_gang_member


class SglangEngine:
    """Adapts `python -m sglang.launch_server` and `sglang serve`, on the host or in a container."""

    launches = True

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """Return the command that launches this trial.

        Raises ConfigError if the job sets what only the agent may set. Raises ConfigError if the
        launch needs something that this host does not have.
        """
        return server_command(spec, place, _read_host_facts(spec))

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Return the URL at which the server will answer."""
        return f"http://{HOST}:{place.port}"

    async def check_ready(self, spec: TrialSpec, url: str, api_key: str = "") -> str:
        """Return what is still missing until the server is ready. Return an empty text if it is
        healthy, serves the requested model and completed a request.

        Raises ServerError if another server answers at `url`.
        """
        if is_gang_member(spec.engine.gang):
            return await readiness.check_member(url)
        home = str(Path.home())
        passed = (
            "--port",
            str(urlsplit(url).port),
            *to_argv(expand_home_paths(spec.engine.args, home)),
        )
        return await readiness.check_server(
            url, api_key, model_path=expand_home(spec.engine.model_path, home), argv=passed
        )

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log_path: Path, api_key: str = ""
    ) -> ConfigurationProved:
        """Return the configuration that took effect, from /server_info, NCCL's own output and the
        installed packages.

        Raises ServerError if the server stopped answering.
        """
        home = str(Path.home())
        installed = await _read_installed_versions(spec, home)
        if is_gang_member(spec.engine.gang):
            # It has no /server_info, so only its variables and installed versions can be proved.
            return await configuration_proof.prove_launch(
                LaunchToProve(spec, log_path, {}, installed),
                {"version": installed.get("sglang", "")},
            )
        info = await readiness.fetch_server_info(url, api_key)
        launched = LaunchToProve(
            spec, log_path, expand_home_paths(spec.engine.args, home), installed
        )
        return await configuration_proof.prove_launch(launched, info)


def _read_host_facts(spec: TrialSpec) -> HostFacts:
    """Read only those facts about this host that the launch needs.

    Raises ConfigError if the launch needs a container runtime that is not installed.
    """
    engine, home = spec.engine, str(Path.home())
    cpus = read_host_cpus() if engine.cpu_binding not in ("", "none") else HostCpus()
    if engine.container.image:
        runtime = find_runtime(engine.container.runtime, os.environ)
        hub = Path(container_command.hub_folder(engine, home)).is_dir()
        return HostFacts(
            home, os.environ, cpus, runtime, client_environment(os.environ), has_hub=hub
        )
    python = shutil.which(expand_home(engine.python, home)) or ""
    program = str(Path(python).with_name("sglang")) if python else ""
    version = (
        Release.parse(
            installed_versions.read_installed_versions(Path(python), ("sglang",)).get("sglang", "")
        )
        if python
        else None
    )
    return HostFacts(
        home,
        os.environ,
        cpus,
        serve_program=program if os.access(program, os.X_OK) else "",
        sglang=version,
    )


async def _read_installed_versions(spec: TrialSpec, home: str) -> dict[str, str]:
    """Return the versions installed for the server's Python. For a container, return only the
    image's id.
    """
    if image := spec.engine.container.image:
        found = await find_image_id(spec.engine.container.runtime, image, os.environ)
        return {"image": found} if found else {}
    python = shutil.which(expand_home(spec.engine.python, home))
    return (
        await asyncio.to_thread(installed_versions.read_installed_versions, Path(python))
        if python
        else {}
    )
