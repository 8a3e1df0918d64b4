"""Describes a fleet as its file does: the hosts, how to reach them and what they allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AGENT_PORT = 7433


@dataclass(frozen=True, slots=True)
class Ssh:
    """The settings for reaching one machine over SSH.

    - `jumps`: the machines to go through, in order, each with its own settings.
    - `identities`, `known_hosts`: absolute paths; empty for the defaults of OpenSSH.
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
    """The list of what jobs may use on a host beyond the defaults. All entries are glob patterns,
    except `args`, which holds names of arguments.
    """

    python: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Install:
    """The settings for installing the agent on a host. Empty paths mean the defaults of the mode.

    - `mode`: system (a systemd unit), user (a systemd unit of the user), daemon (supervised without
      systemd) or auto.
    - `python`: the interpreter of the agent; `bundled` means an interpreter that the deploy
      installs.
    """

    mode: str = "auto"
    path: str = ""
    state: str = ""
    run_as: str = ""
    python: str = "auto"


@dataclass(frozen=True, slots=True)
class FleetHost:
    """One host of the fleet file.

    - `address`: where the controller and other hosts reach the agent.
    - `through_ssh`: whether the controller uses an SSH tunnel.
    - `gpus`: None means all GPUs of the host.
    - `server_python`, `server_image`, `env`: defaults for servers on the host.
    - `cost_per_hour`: 0 means unknown.
    - `metrics`: ADDRESS:PORT of the agent's Prometheus endpoint; empty for none.
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
    """A validated fleet file.

    - `places`: line and column of each dotted key of the file.
    - `give_up_after_s`: how long a host may be away before the attempts and trials that wait for it
      are closed as host_unreachable.
    """

    hosts: tuple[FleetHost, ...] = ()
    currency: str = "USD"
    deploys_at_once: int = 16
    give_up_after_s: float = 3600.0
    file: str = ""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def host(self, name: str) -> FleetHost | None:
        """Return the host with this name, or None."""
        return next((host for host in self.hosts if host.name == name), None)
