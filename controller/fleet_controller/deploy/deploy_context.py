"""Owns what all hosts of one deploy share, and the values that its parts hand on: what was seen of
a host, what came of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fleet_controller.deploy.deploy_plan import AgentInterpreter, DeployPlan, WantedInstall
from fleet_controller.deploy.host_commands import HostCommand
from fleet_controller.deploy.host_facts import ProbeFacts
from fleet_controller.deploy.python_bundle import fetch_python
from fleet_controller.deploy.wheel_bundle import Bundle, Bundler, WheelTarget
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.keyring import Keyring

ProgressCallback = Callable[[str, str], None]  # host, what happens there now
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedDeploy:
    """A host as it was found, as it is to be, and the way from the one to the other."""

    facts: ProbeFacts
    wanted: WantedInstall
    plan: DeployPlan


@dataclass(frozen=True, slots=True)
class HostResult:
    """What came of one host. `state`: changed, unchanged, planned, removed, rolled_back, failed;
    then `message` and `hint` say why.
    """

    host: str
    state: str
    seconds: float = 0.0
    version: str = ""
    message: str = ""
    hint: str = ""
    exit_code: int = 0
    commands: tuple[HostCommand, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class DeployContext:
    """What all hosts of one command share. Blocking work goes to `threads`."""

    authority: Authority
    bundler: Bundler
    report_progress: ProgressCallback
    threads: ThreadPoolExecutor
    force: bool = False
    dry_run: bool = False
    keyring: Keyring = field(default_factory=Keyring)
    bundles: dict[WheelTarget, Bundle] = field(default_factory=dict)
    _building: threading.Lock = field(default_factory=threading.Lock)

    async def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """In a thread of this command."""
        return await asyncio.get_running_loop().run_in_executor(
            self.threads, partial(work, *arguments)
        )

    def bundle_for(self, target: WheelTarget) -> Bundle:
        """Built once for all hosts of a target."""
        with self._building:
            if target not in self.bundles:
                self.bundles[target] = self.bundler.build(target)
            return self.bundles[target]

    def bundled_interpreter(self, machine: str) -> AgentInterpreter:
        """One that is brought along, for all hosts of an architecture."""
        with self._building:
            version, file = fetch_python(self.bundler.cache, machine)
            return AgentInterpreter(version, bundled=file)
