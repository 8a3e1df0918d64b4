"""Owns the faults that strike a fleet on lab hosts: how each is brought about, how it is mended,
what of a host's state it needs.

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
from functools import partial
from typing import Literal

from tests.fakes.load_workers import is_idle, is_sending, kill_while
from tests.lab.fleet import LabAgent, LabFleet, servers_of
from tests.lab.hosts import HostProcess, LabHost
from tests.lab.network import CONTROLLER
from tests.lab.programs import LabTrouble

REVIVE_S = 60.0
SKEW_S = 3600.0


@dataclass(slots=True)
class Site:
    """One host of a fleet, with its agent. All sites of a fleet share `wires` and `door`: there is
    one network and one controller.
    """

    fleet: LabFleet
    agent: LabAgent
    wires: threading.RLock = field(default_factory=threading.RLock)
    door: threading.RLock = field(default_factory=threading.RLock)

    @property
    def host(self) -> LabHost:
        """The host itself."""
        return self.agent.host

    def revive(self) -> None:
        """What a service manager does: an agent that has ended is started again. Nothing happens on
        a host without power.
        """
        if self.host.up and not self.agent.alive:
            self.agent.start()

    def mend(self) -> None:
        """End whatever is wrong here but a wrong clock; LabTrouble when the agent does not come up
        although nothing is.
        """
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


@dataclass(frozen=True, slots=True)
class Struck:
    """What a fault has struck, one word for each, and the wall time of it in nanoseconds. Empty:
    there was nothing to strike.
    """

    at_ns: int
    what: tuple[str, ...]


Act = Callable[[Site], Struck]
SENDING, IDLE, LOAD_PROCESS = (
    "sending worker",
    "idle worker",
    "load process",
)  # what `kill -9 load task` may strike


@dataclass(frozen=True, slots=True)
class Fault:
    """`lasts_s`: how long it stays as it is, unless until the end of what `outlasts` names. `mend`
    leaves the host without it.
    """

    name: str
    strike: Act
    mend: Callable[[Site], None] = Site.revive
    lasts_s: float = 0.0
    outlasts: Literal["", "attempt", "job"] = ""


def kill(processes: Iterable[HostProcess], number: int = signal.SIGKILL) -> list[HostProcess]:
    """Signal exactly these; return those that were still there."""
    found = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.outer_pid, number)
            found.append(process)
    return found


def server_ports(host: LabHost) -> set[int]:
    """Return the ports of the servers that run on a host."""
    words = [process.argv for process in servers_of(host)]
    return {int(argv[argv.index("--port") + 1]) for argv in words if "--port" in argv}


def sending_workers(host: LabHost) -> list[HostProcess]:
    """Return the load workers that carry out a share of the load and are connected to a server of
    their host.
    """
    ports = server_ports(host)
    return [process for process in host.processes() if is_sending(process.outer_pid, ports)]


def idle_workers(host: LabHost) -> list[HostProcess]:
    """Return the load workers that carry out nothing."""
    return [process for process in host.processes() if is_idle(process.outer_pid)]


def load_process(host: LabHost) -> list[HostProcess]:
    """The process that has Ray."""
    return [process for process in host.processes() if "fleet_agent.load.driver" in process.argv]


def _always(_: Site) -> bool:
    return True


def _after(
    what: str, act: Callable[[Site], object], is_there: Callable[[Site], bool] = _always
) -> Act:
    """Return an act that has its effect when it returns, and strikes nothing where what it is for
    is not there.
    """

    def acted(site: Site) -> Struck:
        there = is_there(site)
        act(site)
        return Struck(time.time_ns(), (what,) if there else ())

    return acted


def _wired(act: Callable[[Site], object]) -> Act:
    def acted(site: Site) -> None:
        with site.wires:
            act(site)

    return _after("wire", acted)


def _signalled(
    what: str, find: Callable[[LabHost], list[HostProcess]], number: int = signal.SIGKILL
) -> Act:
    def acted(site: Site) -> Struck:
        found, at_ns = find(site.host), time.time_ns()
        return Struck(at_ns, tuple(what for _ in kill(found, number)))

    return acted


def _kill_load_task(site: Site) -> Struck:
    """Kill the workers that send requests now; if none does, the idle ones that would send the
    next; else the process that has Ray.
    """
    for what, find, holds in (
        (SENDING, sending_workers, partial(is_sending, ports=server_ports(site.host))),
        (IDLE, idle_workers, is_idle),
    ):
        if killed := [
            at_ns for process in find(site.host) if (at_ns := kill_while(process.outer_pid, holds))
        ]:
            return Struck(killed[0], tuple(what for _ in killed))
    return _signalled(LOAD_PROCESS, load_process)(site)


def _heal(site: Site) -> None:
    with site.wires:
        site.host.heal()


def _kill_controller(site: Site) -> Struck:
    controller = site.fleet.controller
    with site.door:
        return _after("controller", lambda _: controller.kill(), lambda _: controller.alive)(site)


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
    """The agent starts anew with a clock that is wrong by so much, as after a reboot without a time
    server.
    """
    site.host.skew_clock(seconds)
    site.agent.stop()
    site.revive()


def _has_agent(site: Site) -> bool:
    return site.agent.alive


KILL_AGENT = Fault("kill -9 agent", _after("agent", lambda site: site.agent.kill(), _has_agent))
KILL_CONTROLLER = Fault("kill -9 controller", _kill_controller, _start_controller)
KILL_SERVER = Fault("kill -9 server", _signalled("server", servers_of))
KILL_LOAD_TASK = Fault("kill -9 load task", _kill_load_task)
POWER_OFF = Fault(
    "power-off",
    _after("power", lambda site: site.host.power_off(), lambda site: site.host.up),
    _boot,
)
CUT_5 = Fault("cut 5 s", _wired(lambda site: site.host.cut()), _heal, 5.0)
CUT_60 = Fault("cut 60 s", _wired(lambda site: site.host.cut()), _heal, 60.0)
LOSS = Fault("20 % loss", _wired(lambda site: site.host.lose(0.2)), _heal, outlasts="job")
DISK_FULL = Fault(
    "disk full", _after("disk", lambda site: site.host.fill_disk()), _free, outlasts="attempt"
)

MATRIX = (
    KILL_AGENT,
    KILL_CONTROLLER,
    KILL_SERVER,
    KILL_LOAD_TASK,
    POWER_OFF,
    CUT_5,
    CUT_60,
    LOSS,
    DISK_FULL,
)

STOP_AGENT = Fault("SIGTERM agent", _after("agent", lambda site: site.agent.stop(), _has_agent))
KILL_LOAD = Fault("kill -9 load process", _signalled(LOAD_PROCESS, load_process))
HANG_SERVER = Fault("server hangs", _signalled("server", servers_of, signal.SIGSTOP), _go_on)
SILENT_HOST = Fault(
    "host not heard", _wired(lambda site: site.fleet.lab.silence(site.host, CONTROLLER)), _heal
)
DEAF_HOST = Fault(
    "host hears nothing", _wired(lambda site: site.fleet.lab.silence(CONTROLLER, site.host)), _heal
)
SLOW = Fault("slow wire", _wired(lambda site: site.host.slow("256kbit")), _heal)
AHEAD = Fault("clock 1 h ahead", _after("clock", lambda site: _set_clock(site, SKEW_S)))
BEHIND = Fault("clock 1 h behind", _after("clock", lambda site: _set_clock(site, -SKEW_S)))

ALL = (*MATRIX, STOP_AGENT, KILL_LOAD, HANG_SERVER, SILENT_HOST, DEAF_HOST, SLOW, AHEAD, BEHIND)
