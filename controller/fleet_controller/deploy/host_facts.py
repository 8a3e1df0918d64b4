"""Defines the facts that the probe reads on a host before a deploy, and parses its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM, USER, DAEMON = "system", "user", "daemon"


@dataclass(frozen=True, slots=True)
class HostPython:
    """A Python interpreter of the host, found in PATH by the name `named`.

    `usable` means CPython with the GIL, outside of virtual environments.
    """

    path: str
    version: tuple[int, int, int]
    usable: bool = True
    named: str = ""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """The current state of a file that a deploy made."""

    sha256: str
    mode: int
    uid: int


@dataclass(frozen=True, slots=True)
class Installed:
    """Describes what was found at one root.

    An empty `mode` means that no deploy made an installation there. `exists` is True if there is
    anything at all. `certificate` is the agent's certificate in PEM. `remembered` means that a
    switch to another version was interrupted before its agent was checked. `restarted` means that
    the new agent had been started before the interruption.
    """

    root: str
    exists: bool = False
    mode: str = ""
    current: str = ""
    previous: str = ""
    versions: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    files: Mapping[str, PlacedFile] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    remembered: bool = False
    restarted: bool = False
    certificate: str = ""
    active: bool = False
    free_bytes: int = 0
    state_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UserAccount:
    """A user account of the host."""

    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """The facts of one host.

    `sudo` means that sudo asks for no password. `users` maps each requested name to its account, or
    to None if there is no such user.
    """

    uid: int = 0
    user: str = "root"
    home: str = "/root"
    system: str = ""
    machine: str = "x86_64"
    libc: str = ""
    pythons: tuple[HostPython, ...] = ()
    systemd: bool = False
    user_systemd: bool = False
    linger: bool = False
    sudo: bool = False
    gpus: int = 0
    cpus: int = 1
    users: Mapping[str, UserAccount | None] = field(default_factory=dict)
    installed: tuple[Installed, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether a deploy has root's rights on the host, by login or by sudo."""
        return self.uid == 0 or self.sudo

    def installed_at(self, root: str) -> Installed:
        """Return what was found at `root`, or an empty value if the probe did not look there."""
        return next((found for found in self.installed if found.root == root), Installed(root))


def parse_facts(answer: Mapping[str, Any]) -> ProbeFacts:
    """Parse the probe's answer. Raises KeyError or TypeError if it is malformed."""
    return ProbeFacts(
        uid=answer["uid"],
        user=answer["user"],
        home=answer["home"],
        system=answer["system"].get("PRETTY_NAME", ""),
        machine=answer["machine"],
        libc=answer["libc"],
        pythons=tuple(
            HostPython(one["path"], _parse_version(one["version"]), one["usable"], one["named"])
            for one in answer["pythons"]
        ),
        systemd=answer["systemd"],
        user_systemd=answer["user_systemd"],
        linger=answer["linger"],
        sudo=answer["sudo"],
        gpus=answer["gpus"],
        cpus=answer["cpus"],
        users={
            name: UserAccount(*account) if account else None
            for name, account in answer["users"].items()
        },
        installed=tuple(_parse_installed(found) for found in answer["installed"]),
    )


def _parse_version(numbers: Sequence[int]) -> tuple[int, int, int]:
    major, minor, micro = numbers
    return major, minor, micro


def _parse_installed(found: Mapping[str, Any]) -> Installed:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in found.items()
        if key != "files"
    }
    return Installed(
        **fields, files={path: PlacedFile(*about) for path, about in found.get("files", {}).items()}
    )
