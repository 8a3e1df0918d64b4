"""Owns how a host of a fleet file is reached over SSH: what the file says first, then the user's ssh configuration. Connects to nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_controller.core.inventory import Ssh
from fleet_controller.ssh.ssh_config import SshConfig
from fleet_controller.yaml.findings import ERROR, INFO
from fleet_controller.yaml.quantities import read_duration

_MOST_JUMPS = 8
_JUMP = re.compile(r"(?:ssh://)?(?:([^@\s,]+)@)?(\[[0-9A-Fa-f:.]+\]|[^\s,@:\[\]]+)(?::([0-9]{1,5}))?/?")
_FORWARDED = re.compile(r"\bssh\b.*\s(?:-W\s*(?:%h:%p|\[%h\]:%p)\s+(?P<after>\S+)|(?P<before>\S+)\s+-W\s*(?:%h:%p|\[%h\]:%p))\s*$")
_UNCHECKED = ("no", "off", "accept-new", "ask-new")


@dataclass(frozen=True, slots=True)
class Said:
    """What the fleet file says of one host; None and empty = it leaves that open. Paths as written, `jump` `none` = directly."""

    user: str | None = None
    port: int | None = None
    identities: tuple[str, ...] | None = None
    known_hosts: tuple[str, ...] | None = None
    jump: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell about how a host is reached. `key`: which of its keys it is about, empty for the host itself."""

    code: str
    severity: str
    message: str
    hint: str
    key: str = ""


class _Refused(Exception):
    """The host cannot be reached so; `note` says why."""

    def __init__(self, note: Note) -> None:
        super().__init__(note.message)
        self.note = note


@dataclass(frozen=True, slots=True)
class Paths:
    """What relative paths are relative to: those of the fleet file to its folder, `~` to the user's home."""

    home: Path
    folder: Path

    def absolute(self, written: str) -> str:
        """The path from `/` on."""
        if written == "~" or written.startswith("~/"):
            return str(self.home / written[2:])
        return str(self.folder / written)


def reached(alias: str, said: Said, config: SshConfig, paths: Paths) -> tuple[Ssh, tuple[Note, ...]]:
    """How `ssh ALIAS` would get there, with what the file says in front; and what is to be told, errors among it."""
    options = config.of(alias)
    notes = list(_told(options, config))
    jumps: tuple[Ssh, ...] = ()
    try:
        jumps = _jumps(_jump_text(alias, said, options, config), said, config, paths, (alias,))
    except _Refused as refused:
        notes.append(refused.note)
    return replace(_settings(alias, said, options, paths), jumps=jumps), tuple(notes)


def _settings(alias: str, said: Said, options: Mapping[str, str | list[str]], paths: Paths) -> Ssh:
    identities = said.identities if said.identities is not None else _many(options, "identityfile")
    known_hosts = said.known_hosts if said.known_hosts is not None else _words(options, "userknownhostsfile")
    return Ssh(
        address=_one(options, "hostname", alias).strip("[]"),
        port=said.port or _port(_one(options, "port")),
        user=said.user or _one(options, "user"),
        identities=tuple(paths.absolute(path) for path in identities if path.lower() != "none"),
        known_hosts=tuple(paths.absolute(path) for path in known_hosts if path.lower() != "none"),
        host_key_alias=_one(options, "hostkeyalias"),
        use_agent=_one(options, "identitiesonly").lower() != "yes" and _one(options, "identityagent").lower() != "none",
        connect_timeout_s=_seconds(_one(options, "connecttimeout")) or Ssh().connect_timeout_s,
    )


def _jump_text(alias: str, said: Said, options: Mapping[str, str | list[str]], config: SshConfig) -> str:
    """What stands after ProxyJump, empty for none. Raises _Refused for a ProxyCommand that nothing takes the place of."""
    if said.jump is not None:
        return "" if said.jump.strip().lower() == "none" else said.jump
    jump, command = _one(options, "proxyjump"), _one(options, "proxycommand")
    if command and not jump:
        match = _FORWARDED.search(command)
        instead = (match["after"] or match["before"]) if match else "HOST"
        message = f"{config.file} reaches {alias} by a ProxyCommand, and benchfleet runs no commands of a configuration"
        hint = f"write `proxy_jump: {instead}` here or `ProxyJump {instead}` there; `proxy_jump: none` goes there directly"
        raise _Refused(Note("proxy_command", ERROR, message, hint))
    return "" if jump.lower() == "none" else jump


def _jumps(text: str, said: Said, config: SshConfig, paths: Paths, seen: tuple[str, ...]) -> tuple[Ssh, ...]:
    """The machines in the order in which they are gone through; before the first its own jumps, as its configuration has them."""
    chain: list[Ssh] = []
    for position, written in enumerate(part.strip() for part in text.split(",") if text):
        user, host, port = _read_jump(written, text)
        if host in seen:
            way = " → ".join((*seen, host))
            hint = "write `proxy_jump: none` at the host that needs no jump, or take it out of the pattern in ~/.ssh/config"
            raise _Refused(Note("jump_loop", ERROR, f"the way there goes round in a circle: {way}", hint, "proxy_jump"))
        seen = (*seen, host)
        options = config.of(host)
        if position == 0:
            chain += _jumps(_jump_text(host, Said(), options, config), said, config, paths, seen)
        of_jump = Said(user or None, port, said.identities if not _many(options, "identityfile") else None, _known(said, options))
        chain.append(_settings(host, of_jump, options, paths))
    if len(chain) > _MOST_JUMPS or len({(jump.address, jump.port) for jump in chain}) < len(chain):
        message = f"the way there goes through {', '.join(f'{jump.address}:{jump.port}' for jump in chain)}"
        raise _Refused(Note("jump_loop", ERROR, message, f"each host once, and at most {_MOST_JUMPS} of them", "proxy_jump"))
    return tuple(chain)


def _known(said: Said, options: Mapping[str, str | list[str]]) -> tuple[str, ...] | None:
    return None if _words(options, "userknownhostsfile") else said.known_hosts


def _read_jump(written: str, text: str) -> tuple[str, str, int | None]:
    match = _JUMP.fullmatch(written)
    if not match or (match[3] and not 0 < int(match[3]) < 65536):
        message = f"`{written[:60]}` is no host to go through" if written else f"`{text[:60]}` has an empty place"
        raise _Refused(Note("bad_jump", ERROR, message, "write it like `user@host:port`, several with commas between", "proxy_jump"))
    return match[1] or "", match[2].strip("[]"), int(match[3]) if match[3] else None


def _told(options: Mapping[str, str | list[str]], config: SshConfig) -> list[Note]:
    """What the configuration asks for and does not get."""
    value = _one(options, "stricthostkeychecking").lower()
    if value not in _UNCHECKED:
        return []
    message = f"{config.file} has StrictHostKeyChecking {value}, which is not honoured: host keys are always checked"
    return [Note("host_keys_checked", INFO, message, "`fleetctl deploy` shows how to add the key of a host that is not known yet")]


def _one(options: Mapping[str, str | list[str]], name: str, otherwise: str = "") -> str:
    value = options.get(name, otherwise)
    return value if isinstance(value, str) else otherwise


def _many(options: Mapping[str, str | list[str]], name: str) -> tuple[str, ...]:
    value = options.get(name, ())
    return tuple(value) if not isinstance(value, str) else (value,)


def _words(options: Mapping[str, str | list[str]], name: str) -> tuple[str, ...]:
    return tuple(word.strip('"') for word in re.findall(r'"[^"]*"|\S+', _one(options, name)))


def _port(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 65536 else Ssh().port


def _seconds(text: str) -> float:
    try:
        return read_duration(text) if text else 0.0
    except ValueError:
        return 0.0
