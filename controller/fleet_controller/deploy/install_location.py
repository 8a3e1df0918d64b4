"""Chooses where an agent is installed on a host and which user it runs as."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_controller.core.inventory import FleetHost, Install
from fleet_controller.deploy.host_facts import DAEMON, SYSTEM, USER, ProbeFacts, UserAccount
from fleet_protos.errors import ConfigError

SYSTEM_ROOT, SYSTEM_CONFIG, SYSTEM_STATE = (
    "/opt/benchfleet",
    "/etc/benchfleet",
    "/var/lib/benchfleet",
)
USER_ROOT = "~/.local/share/benchfleet"
SYSTEM_USER = "benchfleet"
UNIT = "benchfleet-agent.service"


@dataclass(frozen=True, slots=True)
class InstallLocation:
    """The paths and the user of one installation.

    `owner` is the user that the agent runs as. `home` is the home folder of that user. `unit` is
    the path of the unit file, empty without systemd. `by_sudo` means that root's rights come from
    sudo. `makes_user` means that the deploy creates the owner.
    """

    mode: str
    root: str
    config: str
    state: str
    unit: str
    owner: str
    home: str
    uid: int | None = None
    by_sudo: bool = False
    makes_user: bool = False

    @property
    def log_argv(self) -> tuple[str, ...]:
        """The arguments of the program that prints the last lines of the agent's log."""
        if self.mode == DAEMON:
            return ("tail", "-n", "12", f"{self.root}/agent.log")
        return (
            "journalctl",
            *(["--user"] if self.mode == USER else []),
            "-u",
            UNIT,
            "-n",
            "12",
            "-o",
            "cat",
            "--no-pager",
        )

    def systemctl(self, *words: str) -> tuple[str, ...]:
        """Return the arguments of a systemctl call for this installation."""
        return ("systemctl", *(["--user"] if self.mode == USER else []), *words)


def candidate_roots(install: Install) -> list[tuple[str, str]]:
    """Return the root and the state folder of each possible installation, for the probe.

    `~` means the home folder of the user on the host.
    """
    if install.path:
        states = {SYSTEM: SYSTEM_STATE, "auto": SYSTEM_STATE}
        return [(install.path, install.state or states.get(install.mode, f"{install.path}/state"))]
    system = (SYSTEM_ROOT, install.state or SYSTEM_STATE)
    return [system, (USER_ROOT, install.state or f"{USER_ROOT}/state")]


def choose_location(host: FleetHost, facts: ProbeFacts) -> InstallLocation:
    """Choose the location of the agent of `host`.

    Raises ConfigError, which suggests alternatives, when the host does not support the wanted mode
    or user.
    """
    install = host.install
    mode = _choose_mode(host, facts)
    if mode == SYSTEM:
        owner = install.run_as or (SYSTEM_USER if facts.uid == 0 else facts.user)
        account = facts.users.get(owner) or (
            UserAccount(facts.uid, facts.uid, facts.home) if owner == facts.user else None
        )
        if account is None and owner != SYSTEM_USER:
            raise ConfigError(
                f"host {host.name}: install.run_as: there is no user {owner} on the host",
                "create that user, or set install.run_as to another user",
            )
        state = _expand_home(install.state, facts) or SYSTEM_STATE
        location = InstallLocation(
            SYSTEM,
            _expand_home(install.path, facts) or SYSTEM_ROOT,
            SYSTEM_CONFIG,
            state,
            f"/etc/systemd/system/{UNIT}",
            owner,
            state,
        )
        if account is None:
            return _with_owner(location, None, location.state, facts)
        return _with_owner(location, account.uid, account.home, facts)
    if install.run_as not in ("", facts.user):
        raise ConfigError(
            f"host {host.name}: install.run_as: an agent in mode {mode} runs as the user who"
            f" deploys it, {facts.user}",
            f"set install.mode: system, or log in as {install.run_as}",
        )
    root = _expand_home(install.path, facts) or _expand_home(USER_ROOT, facts)
    unit = f"{facts.home}/.config/systemd/user/{UNIT}" if mode == USER else ""
    return InstallLocation(
        mode,
        root,
        f"{root}/etc",
        _expand_home(install.state, facts) or f"{root}/state",
        unit,
        facts.user,
        facts.home,
        facts.uid,
    )


def _with_owner(
    location: InstallLocation, uid: int | None, home: str, facts: ProbeFacts
) -> InstallLocation:
    return replace(location, home=home, uid=uid, by_sudo=facts.uid != 0, makes_user=uid is None)


def _expand_home(path: str, facts: ProbeFacts) -> str:
    return facts.home + path[1:] if path == "~" or path.startswith("~/") else path


def _choose_mode(host: FleetHost, facts: ProbeFacts) -> str:
    wanted = host.install.mode
    installed_mode = next((found.mode for found in facts.installed if found.mode), "")
    if wanted == "auto":
        return installed_mode or (
            SYSTEM
            if facts.systemd and facts.is_root
            else USER
            if facts.user_systemd and facts.linger
            else DAEMON
        )
    if installed_mode and installed_mode != wanted:
        raise ConfigError(
            f"host {host.name}: the installed agent has mode {installed_mode},"
            f" but install.mode is {wanted}",
            f"remove the installed agent first: fleetctl undeploy {host.name}",
        )
    if wanted in (SYSTEM, USER) and not facts.systemd:
        raise ConfigError(
            f"host {host.name}: install.mode: {wanted} needs systemd, which does not run there",
            "set install.mode to daemon or auto",
        )
    if wanted == SYSTEM and not facts.is_root:
        raise ConfigError(
            f"host {host.name}: install.mode: system needs root, and sudo asks {facts.user} for a"
            " password",
            f"allow {facts.user} sudo without a password (NOPASSWD in /etc/sudoers.d), log in as"
            " root (`user: root`), or set install.mode to user or daemon, which need no root",
        )
    if wanted == USER and not facts.user_systemd:
        raise ConfigError(
            f"host {host.name}: install.mode: user needs a systemd instance of user {facts.user},"
            " which does not run there",
            "set install.mode: daemon, or start that instance with `loginctl enable-linger`",
        )
    return wanted
