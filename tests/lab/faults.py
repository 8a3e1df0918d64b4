"""Owns the faults that strike a fleet on lab hosts: how each is brought about, how it is mended, what of a host's state it needs.

A fault is a value; when it strikes and what must hold afterwards is the business of the tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.lab.fleet import LabAgent, LabFleet, servers_of
from tests.lab.hosts import HostProcess, LabHost
from tests.lab.network import CONTROLLER
from tests.lab.programs import LabTrouble

REVIVE_S = 60.0
SKEW_S = 3600.0


@dataclass(slots=True)
class Site:
    """One host of a fleet, with its agent. All sites of a fleet share `wires` and `door`: there is one network and one controller."""

    fleet: LabFleet
    agent: LabAgent
    wires: threading.RLock = field(default_factory=threading.RLock)
    door: threading.RLock = field(default_factory=threading.RLock)

    @property
    def host(self) -> LabHost:
        """The host itself."""
        return self.agent.host

    def revive(self) -> None:
        """What a service manager does: an agent that has ended is started again. Nothing happens on a host without power."""
        if self.host.up and not self.agent.alive:
            self.agent.start()

    def mend(self) -> None:
        """End whatever is wrong here but a wrong clock; LabTrouble when the agent does not come up although nothing is."""
        kill(servers_of(self.host), signal.SIGCONT)
        with self.wires:
            self.host.heal()
        self.host.free_disk()
        self.host.boot()
        with self.door:
            if not self.fleet.controller.alive:
                self.fleet.controller.start()
        deadline = time.monotonic() + REVIVE_S
        while True:
            try:
                self.revive()
                return
            except LabTrouble:
                if time.monotonic() > deadline:
                    raise


def sites(fleet: LabFleet) -> list[Site]:
    """All hosts of a fleet."""
    wires, door = threading.RLock(), threading.RLock()
    return [Site(fleet, agent, wires, door) for agent in fleet.agents.values()]


Act = Callable[[Site], int]  # returns the wall time, in nanoseconds, at which it had its effect


@dataclass(frozen=True, slots=True)
class Fault:
    """`lasts_s`: how long it stays as it is, unless until the end of what `outlasts` names. `mend` leaves the host without it."""

    name: str
    strike: Act
    mend: Callable[[Site], None] = Site.revive
    lasts_s: float = 0.0
    outlasts: Literal["", "attempt", "job"] = ""


def kill(processes: Iterable[HostProcess], number: int = signal.SIGKILL) -> int:
    """Signal exactly these, and when that was; one that has just ended needs none."""
    at_ns = time.time_ns()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.outer_pid, number)
    return at_ns


def load_task(host: LabHost) -> list[HostProcess]:
    """The process that sends requests now, else the idle ones that would send the next, else the load process that has none yet."""
    found = {"ray::run_shard": [], "ray::IDLE": [], "fleet_agent.load.driver": []}  # type: dict[str, list[HostProcess]]
    for process in host.processes():
        for word, kept in found.items():
            if word in process.argv or process.argv[:1] == (word,):
                kept.append(process)
    return next((kept for kept in found.values() if kept), [])


def load_process(host: LabHost) -> list[HostProcess]:
    """The process that has Ray."""
    return [process for process in host.processes() if "fleet_agent.load.driver" in process.argv]


def _after(act: Callable[[Site], object]) -> Act:
    """An act that has its effect when it returns."""

    def acted(site: Site) -> int:
        act(site)
        return time.time_ns()

    return acted


def _wired(act: Callable[[Site], object]) -> Act:
    def acted(site: Site) -> int:
        with site.wires:
            act(site)
        return time.time_ns()

    return acted


def _heal(site: Site) -> None:
    with site.wires:
        site.host.heal()


def _kill_controller(site: Site) -> int:
    with site.door:
        site.fleet.controller.kill()
        return time.time_ns()


def _start_controller(site: Site) -> None:
    with site.door:
        if not site.fleet.controller.alive:
            site.fleet.controller.start()


def _boot(site: Site) -> None:
    site.host.boot()
    site.revive()


def _free(site: Site) -> None:
    site.host.free_disk()
    site.revive()


def _go_on(site: Site) -> None:
    kill(servers_of(site.host), signal.SIGCONT)
    site.revive()


def _set_clock(site: Site, seconds: float) -> None:
    """The agent starts anew with a clock that is wrong by so much, as after a reboot without a time server."""
    site.host.skew_clock(seconds)
    site.agent.stop()
    site.revive()


KILL_AGENT = Fault("kill -9 agent", _after(lambda site: site.agent.kill()))
KILL_CONTROLLER = Fault("kill -9 controller", _kill_controller, _start_controller)
KILL_SERVER = Fault("kill -9 server", lambda site: kill(servers_of(site.host)))
KILL_LOAD_TASK = Fault("kill -9 load task", lambda site: kill(load_task(site.host)))
POWER_OFF = Fault("power-off", _after(lambda site: site.host.power_off()), _boot)
CUT_5 = Fault("cut 5 s", _wired(lambda site: site.host.cut()), _heal, 5.0)
CUT_60 = Fault("cut 60 s", _wired(lambda site: site.host.cut()), _heal, 60.0)
LOSS = Fault("20 % loss", _wired(lambda site: site.host.lose(0.2)), _heal, outlasts="job")
DISK_FULL = Fault("disk full", _after(lambda site: site.host.fill_disk()), _free, outlasts="attempt")

MATRIX = (KILL_AGENT, KILL_CONTROLLER, KILL_SERVER, KILL_LOAD_TASK, POWER_OFF, CUT_5, CUT_60, LOSS, DISK_FULL)

STOP_AGENT = Fault("SIGTERM agent", _after(lambda site: site.agent.stop()))
KILL_LOAD = Fault("kill -9 load process", lambda site: kill(load_process(site.host)))
HANG_SERVER = Fault("server hangs", lambda site: kill(servers_of(site.host), signal.SIGSTOP), _go_on)
SILENT_HOST = Fault("host not heard", _wired(lambda site: site.fleet.lab.silence(site.host, CONTROLLER)), _heal)
DEAF_HOST = Fault("host hears nothing", _wired(lambda site: site.fleet.lab.silence(CONTROLLER, site.host)), _heal)
SLOW = Fault("slow wire", _wired(lambda site: site.host.slow("256kbit")), _heal)
AHEAD = Fault("clock 1 h ahead", _after(lambda site: _set_clock(site, SKEW_S)))
BEHIND = Fault("clock 1 h behind", _after(lambda site: _set_clock(site, -SKEW_S)))

ALL = (*MATRIX, STOP_AGENT, KILL_LOAD, HANG_SERVER, SILENT_HOST, DEAF_HOST, SLOW, AHEAD, BEHIND)
