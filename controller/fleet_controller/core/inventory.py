"""Owns a fleet as its file describes it, as frozen values: hosts, how to reach them, what they
allow. Reads and reaches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AGENT_PORT = 7433


@dataclass(frozen=True, slots=True)
class Ssh:
    """How one machine is reached over SSH. `jumps`: the machines to go through, in order, each with
    settings of its own.

    `identities` and `known_hosts` are absolute paths; empty = those of OpenSSH. `config_file`:
    whose settings were taken in.
    """

    address: str = ""
    port: int = 22
    user: str = ""
    identities: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    jumps: tuple[Ssh, ...] = ()
    host_key_alias: str = ""
    use_agent: bool = True
    connect_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Allow:
    """What jobs may ask of a host beyond the defaults: glob patterns of paths, images, models and
    variables; `args`: names.
    """

    python: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Install:
    """Where and how the agent lives on a host. `mode`: system (a unit), user (a unit of the user),
    daemon (supervised, no systemd), auto.

    Empty paths are those of the mode. `python`: interpreter of the agent; `bundled` = one that is
    brought along.
    """

    mode: str = "auto"
    path: str = ""
    state: str = ""
    run_as: str = ""
    python: str = "auto"


@dataclass(frozen=True, slots=True)
class FleetHost:
    """One host. `address`: where controller and other hosts reach its agent; `through_ssh`: the
    controller by a tunnel.

    `gpus` None = all that are there. `server_python`, `server_image`, `env`: defaults of servers
    there. `cost_per_hour`: 0 = not told. `metrics`: ADDRESS:PORT of its Prometheus endpoint, empty
    = none.
    """

    name: str = ""
    address: str = ""
    port: int = AGENT_PORT
    through_ssh: bool = False
    ssh: Ssh = field(default_factory=Ssh)
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    simulated_gpus: int = 0
    server_python: str = ""
    server_image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cost_per_hour: float = 0.0
    load_only: bool = False
    metrics: str = ""
    allow: Allow = field(default_factory=Allow)
    install: Install = field(default_factory=Install)


@dataclass(frozen=True, slots=True)
class Inventory:
    """A validated fleet file. `places` gives line and column of each dotted key of the file.

    `give_up_after_s`: how long a host may be away before what waits for it is closed as
    host_unreachable.
    """

    hosts: tuple[FleetHost, ...] = ()
    currency: str = "USD"
    deploys_at_once: int = 16
    give_up_after_s: float = 3600.0
    file: str = ""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def host(self, name: str) -> FleetHost | None:
        """The host of this name, None when there is none."""
        return next((host for host in self.hosts if host.name == name), None)
