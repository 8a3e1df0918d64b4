"""Defines what all hosts of one deploy share, and the plan and result of one host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fleet_controller.deploy.deploy_plan import DeployPlan
from fleet_controller.deploy.host_commands import HostCommand
from fleet_controller.deploy.host_facts import ProbeFacts
from fleet_controller.deploy.python_bundle import fetch_python
from fleet_controller.deploy.wanted_install import AgentInterpreter, WantedInstall
from fleet_controller.deploy.wheel_bundle import Bundle, Bundler, WheelTarget
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.keyring import Keyring

ProgressCallback = Callable[[str, str], None]  # host, its current step
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedDeploy:
    """Holds the state that was found on a host, the wanted state, and the plan to get there."""

    facts: ProbeFacts
    wanted: WantedInstall
    plan: DeployPlan


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of a deploy or undeploy on one host.

    `state` is changed, unchanged, planned, removed, rolled_back or failed. If it is rolled_back or
    failed, `message` and `hint` say why.
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
    """Holds what all hosts of one command share. Blocking work runs in `threads`."""

    authority: Authority
    bundler: Bundler
    report_progress: ProgressCallback
    threads: ThreadPoolExecutor
    force: bool = False
    dry_run: bool = False
    keyring: Keyring = field(default_factory=Keyring)
    bundles: dict[tuple[WheelTarget, bool], Bundle] = field(default_factory=dict)
    _building: threading.Lock = field(default_factory=threading.Lock)

    async def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run blocking work in a thread of this command, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(
            self.threads, partial(work, *arguments)
        )

    def bundle_for(self, target: WheelTarget, *, simulated: bool) -> Bundle:
        """Return the wheels for a target, with the simulator's wheel if `simulated`.

        Each bundle is built once and used for all hosts of that target.
        """
        key = (target, simulated)
        with self._building:
            if key not in self.bundles:
                self.bundles[key] = self.bundler.build(target, simulated=simulated)
            return self.bundles[key]

    def bundled_interpreter(self, machine: str) -> AgentInterpreter:
        """Return a relocatable Python that can be sent to hosts with this processor
        architecture.
        """
        with self._building:
            version, file = fetch_python(self.bundler.cache, machine)
            return AgentInterpreter(version, bundled=file)
