"""Owns the adapter of the simulated engine: its command line, and how a trial's server is looked at. Launches nothing itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fleet_agent.engines.engine import LaunchCommand, Place
from fleet_agent.engines.simulated import probes, proof
from fleet_protos.errors import ConfigError
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial import TrialSpec

_HOST = "127.0.0.1"
_OURS = ("model_path", "host", "port", "simulation")
_TAIL_BYTES = 65536


class SimulatedEngine:
    """An Engine whose servers are processes of ours with a model of time."""

    launches = True

    def command(self, spec: TrialSpec, place: Place) -> LaunchCommand:
        """The process for this trial. Raises ConfigError when the job sets what only the agent may set."""
        taken = [name for name in _OURS if name in spec.engine.args]
        if taken:
            raise ConfigError(f"engine.args of {spec.variant}: {', '.join(taken)} cannot be set there", "the agent sets it; remove it")
        if not spec.engine.model_path:
            raise ConfigError(f"variant {spec.variant} names no model", "set model.path in the job")
        knobs = {**asdict(spec.engine.simulation), "launch": place.token}
        argv = (
            *(sys.executable, "-m", "fleet_agent.engines.simulated.server"),
            *("--model-path", spec.engine.model_path, "--host", _HOST, "--port", str(place.port)),
            *(word for name, value in spec.engine.args.items() for word in option(name, value)),
            *("--simulation", json.dumps(knobs)),
        )
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        return LaunchCommand(argv, {**base, **spec.engine.env, "BENCHFLEET_LAUNCH": place.token}, str(place.folder))

    def url(self, spec: TrialSpec, place: Place) -> str:
        """Where it will answer."""
        return f"http://{_HOST}:{place.port}"

    async def ready(self, spec: TrialSpec, url: str) -> str:
        """Empty when it is healthy, the model asked for, and completed a request. Raises ServerFailed for another server."""
        return await probes.look(url, model_path=spec.engine.model_path)

    async def prove(self, spec: TrialSpec, url: str, log: Path) -> ConfigurationProved:
        """What took effect, from /server_info and the log. Raises ServerFailed when it stopped answering."""
        info = await probes.server_info(url)
        text = _read(log)
        env = proof.nccl_seen(text)
        gates = (*proof.argument_gates(spec.engine.args, info), *proof.environment_gates(spec.engine.env, text))
        versions = {"sglang": str(info.get("version", "")), **proof.nccl_version(text)}
        return ConfigurationProved(effective_args=_shown(info), versions=versions, env=env, gates=gates)

    def explain(self, log: Path, exit_code: int) -> tuple[str, str]:
        """(failure class, cause) of a server that ended."""
        return proof.explain(_read(log)[-_TAIL_BYTES:], exit_code)


def option(name: str, value: Any) -> tuple[str, ...]:
    """The words of one argument: a flag alone for True, none for False or None, one word for each entry of a list."""
    flag = "--" + name.replace("_", "-")
    if value is True:
        return (flag,)
    if value is False or value is None:
        return ()
    if isinstance(value, list | tuple):
        return (flag, *map(str, value))
    return (flag, json.dumps(dict(value)) if isinstance(value, Mapping) else str(value))


def _shown(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name not in ("internal_states", "launch_command", "status")}


def _read(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except OSError:
        return ""
