"""Adapts the simulated server to the agent: builds its launch command, probes it and proves its
configuration.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang import readiness
from fleet_agent.engines.sglang.launch.argv import gang_argv, to_argv
from fleet_agent.engines.sglang.launch.cpu_binding import HostCpus, bind_cpus, choose_cpus
from fleet_agent.engines.sglang.launch.host_cpus import read_host_cpus
from fleet_agent.engines.sglang.proof import configuration_proof
from fleet_agent.engines.sglang.proof.configuration_proof import LaunchToProve
from fleet_protos.errors import ConfigError
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec, is_gang_member

_HOST = "127.0.0.1"
_PACKAGE = "fleet_simulator"
_AGENT_ONLY_ARGS = (
    *("model_path", "host", "port", "simulation"),
    *("nnodes", "node_rank", "dist_init_addr"),
)


def simulator_is_installed() -> bool:
    """Return whether the package of the simulated server is installed in the agent's Python."""
    return find_spec(_PACKAGE) is not None


class SimulatedEngine:
    """Adapts the simulated server, a process of `fleet_simulator` with a model of time."""

    launches = True

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """Return the command that launches this trial.

        Raises ConfigError if the job sets what only the agent may set.
        """
        taken = [name for name in _AGENT_ONLY_ARGS if name in spec.engine.args]
        if taken:
            names = ", ".join(taken)
            raise ConfigError(
                f"engine.args of {spec.variant}: a job cannot set {names}",
                "remove this argument: the agent sets it",
            )
        if not spec.engine.model_path:
            raise ConfigError(f"variant {spec.variant} names no model", "set model.path in the job")
        knobs = {**asdict(spec.engine.simulation), "launch": place.token}
        asked = spec.engine.cpu_binding
        host = read_host_cpus() if asked not in ("", "none") else HostCpus()
        # Simulated GPUs have no NUMA node, so `auto` binds nothing; only a list of CPUs does.
        bound = bind_cpus(choose_cpus(asked, (), host), host, None)
        argv = (
            *(*bound.prefix, sys.executable, "-m", f"{_PACKAGE}.server"),
            *("--model-path", spec.engine.model_path, "--host", _HOST, "--port", str(place.port)),
            *gang_argv(spec.engine.gang),
            *to_argv(spec.engine.args),
            *("--simulation", json.dumps(knobs)),
        )
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        is_member = is_gang_member(spec.engine.gang)
        return LaunchCommand(
            argv,
            {**base, **spec.engine.env, "BENCHFLEET_LAUNCH": place.token},
            str(place.folder),
            key_file="" if is_member else str(place.key_file),
        )

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Return the URL at which the server will answer."""
        return f"http://{_HOST}:{place.port}"

    async def check_ready(self, spec: TrialSpec, url: str, api_key: str = "") -> str:
        """Return what is still missing until the server is ready. Return an empty text if it is
        healthy, serves the requested model and completed a request.

        Raises ServerError if another server answers at `url`.
        """
        if is_gang_member(spec.engine.gang):
            return await readiness.check_member(url)
        passed = ("--port", str(urlsplit(url).port), *to_argv(spec.engine.args))
        return await readiness.check_server(
            url, api_key, model_path=spec.engine.model_path, argv=passed
        )

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log_path: Path, api_key: str = ""
    ) -> ConfigurationProved:
        """Return the configuration that took effect, from /server_info and the server's log.

        Raises ServerError if the server stopped answering.
        """
        if is_gang_member(spec.engine.gang):
            return await configuration_proof.prove_launch(
                LaunchToProve(spec, log_path, {}, {}, names_all=True), {}
            )
        info = await readiness.fetch_server_info(url, api_key)
        return await configuration_proof.prove_launch(
            LaunchToProve(spec, log_path, spec.engine.args, {}, names_all=True), info
        )
