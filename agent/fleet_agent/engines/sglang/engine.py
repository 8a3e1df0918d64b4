"""Owns the adapter of SGLang: its command line, and how a trial's server is looked at. Launches nothing itself."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

from fleet_agent.engines.engine import LaunchCommand, Place
from fleet_agent.engines.sglang import effective, explain, log, readiness, versions
from fleet_agent.engines.sglang.arguments import at_home, under_home, words
from fleet_agent.engines.sglang.environment import GPUS, server_environment
from fleet_protos.errors import ConfigError
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial import TrialSpec

_HOST = "127.0.0.1"  # what is measured here is driven from here
_OURS = ("model_path", "host", "port")


class SglangEngine:
    """An Engine whose servers are `python -m sglang.launch_server`."""

    launches = True

    def command(self, spec: TrialSpec, place: Place) -> LaunchCommand:
        """The process for this trial. Raises ConfigError when the job sets what only the agent may set, or names no model or Python."""
        self._check(spec)
        home = str(Path.home())
        argv = (
            *(under_home(spec.engine.python, home), "-m", "sglang.launch_server"),
            *("--model-path", under_home(spec.engine.model_path, home), "--host", _HOST, "--port", str(place.port)),
            *words(at_home(spec.engine.args, home)),
        )
        return LaunchCommand(argv, server_environment(os.environ, spec.engine.env, place.gpus, place.token), str(place.folder))

    def _check(self, spec: TrialSpec) -> None:
        taken = [name for name in _OURS if name in spec.engine.args]
        if taken:
            raise ConfigError(f"engine.args of {spec.variant}: {', '.join(taken)} cannot be set there", "the agent sets it; remove it")
        if GPUS in spec.engine.env:
            raise ConfigError(f"engine.env of {spec.variant}: {GPUS} cannot be set there", "engine.gpus says how many; remove it")
        if not spec.engine.model_path:
            raise ConfigError(f"variant {spec.variant} names no model", "set model.path in the job")
        if not spec.engine.python:
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
        python = shutil.which(under_home(spec.engine.python, home))
        installed = await asyncio.to_thread(versions.installed, Path(python)) if python else {}
        return replace(proved, versions={**installed, **proved.versions})

    def explain(self, log_path: Path, exit_code: int) -> tuple[str, str]:
        """(failure class, cause) of a server that ended."""
        return explain.explain(log.tail(log_path), exit_code)
