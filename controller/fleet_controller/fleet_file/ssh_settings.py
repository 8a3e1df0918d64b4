"""Works out how a host of a fleet file is reached over SSH. The file's settings take precedence
over the user's ssh configuration.
"""

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
_JUMP = re.compile(
    r"(?:ssh://)?(?:([^@\s,]+)@)?(\[[0-9A-Fa-f:.]+\]|[^\s,@:\[\]]+)(?::([0-9]{1,5}))?/?"
)
_FORWARDED = re.compile(
    r"\bssh\b.*\s(?:-W\s*(?:%h:%p|\[%h\]:%p)\s+(?P<after>\S+)|(?P<before>\S+)\s+-W\s*(?:%h:%p|\[%h\]:%p))\s*$"
)
_UNCHECKED = ("no", "off", "accept-new", "ask-new")


@dataclass(frozen=True, slots=True)
class FileSshSettings:
    """What the fleet file says about reaching one host over SSH. None and empty values leave a
    setting open. Paths are as written. `none` as `jump` means a direct connection.
    """

    user: str | None = None
    port: int | None = None
    identities: tuple[str, ...] | None = None
    known_hosts: tuple[str, ...] | None = None
    jump: str | None = None


@dataclass(frozen=True, slots=True)
class ReachNote:
    """A remark on how a host is reached. `key` is the key of the host entry that the remark is
    about. It is empty if the remark is about the host as a whole.
    """

    code: str
    severity: str
    message: str
    hint: str
    key: str = ""


class _CannotReach(Exception):
    """The host cannot be reached with these settings. `note` says why."""

    def __init__(self, note: ReachNote) -> None:
        super().__init__(note.message)
        self.note = note


@dataclass(frozen=True, slots=True)
class PathRoots:
    """The folders that relative paths start from: the fleet file's folder, and the user's home for
    `~`.
    """

    home: Path
    folder: Path

    def absolute(self, written: str) -> str:
        """Return the written path as an absolute path."""
        if written == "~" or written.startswith("~/"):
            return str(self.home / written[2:])
        return str(self.folder / written)


def resolve_ssh(
    alias: str, file_settings: FileSshSettings, config: SshConfig, paths: PathRoots
) -> tuple[Ssh, tuple[ReachNote, ...]]:
    """Return how `ssh ALIAS` would connect, and the remarks on that, including errors. The fleet
    file's settings take precedence.
    """
    options = config.options_for(alias)
    notes = list(_unsupported_option_notes(options, config))
    jumps: tuple[Ssh, ...] = ()
    try:
        jumps = _jumps(
            _jump_text(alias, file_settings, options, config),
            file_settings,
            config,
            paths,
            (alias,),
        )
    except _CannotReach as refused:
        notes.append(refused.note)
    return replace(_settings(alias, file_settings, options, paths), jumps=jumps), tuple(notes)


def _settings(
    alias: str,
    file_settings: FileSshSettings,
    options: Mapping[str, str | list[str]],
    paths: PathRoots,
) -> Ssh:
    identities = (
        file_settings.identities
        if file_settings.identities is not None
        else _option_list(options, "identityfile")
    )
    known_hosts = (
        file_settings.known_hosts
        if file_settings.known_hosts is not None
        else _option_words(options, "userknownhostsfile")
    )
    return Ssh(
        address=_option_text(options, "hostname", alias).strip("[]"),
        port=file_settings.port or _port(_option_text(options, "port")),
        user=file_settings.user or _option_text(options, "user"),
        identities=tuple(paths.absolute(path) for path in identities if path.lower() != "none"),
        known_hosts=tuple(paths.absolute(path) for path in known_hosts if path.lower() != "none"),
        host_key_alias=_option_text(options, "hostkeyalias"),
        use_agent=_option_text(options, "identitiesonly").lower() != "yes"
        and _option_text(options, "identityagent").lower() != "none",
        connect_timeout_s=_seconds(_option_text(options, "connecttimeout"))
        or Ssh().connect_timeout_s,
    )


def _jump_text(
    alias: str,
    file_settings: FileSshSettings,
    options: Mapping[str, str | list[str]],
    config: SshConfig,
) -> str:
    """Return the value of ProxyJump, or an empty text if there is no jump host. Raises _CannotReach
    if only a ProxyCommand says how to connect.
    """
    if file_settings.jump is not None:
        return "" if file_settings.jump.strip().lower() == "none" else file_settings.jump
    jump, command = _option_text(options, "proxyjump"), _option_text(options, "proxycommand")
    if command and not jump:
        match = _FORWARDED.search(command)
        instead = (match["after"] or match["before"]) if match else "HOST"
        message = (
            f"{config.file} reaches {alias} through a ProxyCommand, but benchfleet does not run "
            "commands from a configuration"
        )
        hint = (
            f"write `proxy_jump: {instead}` here, or `ProxyJump {instead}` in the ssh "
            "configuration; `proxy_jump: none` connects directly"
        )
        raise _CannotReach(ReachNote("proxy_command", ERROR, message, hint))
    return "" if jump.lower() == "none" else jump


def _jumps(
    text: str,
    file_settings: FileSshSettings,
    config: SshConfig,
    paths: PathRoots,
    seen: tuple[str, ...],
) -> tuple[Ssh, ...]:
    """Return the jump hosts in connection order. If the first jump host is itself reached through
    jump hosts, they come before it.
    """
    chain: list[Ssh] = []
    for position, written in enumerate(part.strip() for part in text.split(",") if text):
        user, host, port = _read_jump(written, text)
        if host in seen:
            way = " → ".join((*seen, host))
            hint = (
                "write `proxy_jump: none` for the host that needs no jump, or change the pattern "
                "in ~/.ssh/config"
            )
            raise _CannotReach(
                ReachNote(
                    "jump_loop",
                    ERROR,
                    f"the jump hosts form a loop: {way}",
                    hint,
                    "proxy_jump",
                )
            )
        seen = (*seen, host)
        options = config.options_for(host)
        if position == 0:
            chain += _jumps(
                _jump_text(host, FileSshSettings(), options, config),
                file_settings,
                config,
                paths,
                seen,
            )
        of_jump = FileSshSettings(
            user or None,
            port,
            file_settings.identities if not _option_list(options, "identityfile") else None,
            _known_hosts_of_jump(file_settings, options),
        )
        chain.append(_settings(host, of_jump, options, paths))
    if len(chain) > _MOST_JUMPS or len({(jump.address, jump.port) for jump in chain}) < len(chain):
        jump_hosts = ", ".join(f"{jump.address}:{jump.port}" for jump in chain)
        message = f"the connection goes through {jump_hosts}"
        raise _CannotReach(
            ReachNote(
                "jump_loop",
                ERROR,
                message,
                f"use each jump host only once, and at most {_MOST_JUMPS} jump hosts",
                "proxy_jump",
            )
        )
    return tuple(chain)


def _known_hosts_of_jump(
    file_settings: FileSshSettings, options: Mapping[str, str | list[str]]
) -> tuple[str, ...] | None:
    return None if _option_words(options, "userknownhostsfile") else file_settings.known_hosts


def _read_jump(written: str, text: str) -> tuple[str, str, int | None]:
    match = _JUMP.fullmatch(written)
    if not match or (match[3] and not 0 < int(match[3]) < 65536):
        message = (
            f"`{written[:60]}` is not a jump host"
            if written
            else f"`{text[:60]}` has an empty entry"
        )
        raise _CannotReach(
            ReachNote(
                "bad_jump",
                ERROR,
                message,
                "write it like `user@host:port`, and separate several jump hosts with commas",
                "proxy_jump",
            )
        )
    return match[1] or "", match[2].strip("[]"), int(match[3]) if match[3] else None


def _unsupported_option_notes(
    options: Mapping[str, str | list[str]], config: SshConfig
) -> list[ReachNote]:
    """Return remarks on options of the user's ssh configuration that are ignored."""
    value = _option_text(options, "stricthostkeychecking").lower()
    if value not in _UNCHECKED:
        return []
    message = (
        f"{config.file} has StrictHostKeyChecking {value}, which benchfleet ignores: host keys are "
        "always checked"
    )
    return [
        ReachNote(
            "host_keys_checked",
            INFO,
            message,
            "`fleetctl deploy` shows how to add the key of an unknown host",
        )
    ]


def _option_text(options: Mapping[str, str | list[str]], name: str, otherwise: str = "") -> str:
    value = options.get(name, otherwise)
    return value if isinstance(value, str) else otherwise


def _option_list(options: Mapping[str, str | list[str]], name: str) -> tuple[str, ...]:
    value = options.get(name, ())
    return tuple(value) if not isinstance(value, str) else (value,)


def _option_words(options: Mapping[str, str | list[str]], name: str) -> tuple[str, ...]:
    return tuple(
        word.strip('"') for word in re.findall(r'"[^"]*"|\S+', _option_text(options, name))
    )


def _port(text: str) -> int:
    return (
        int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 65536 else Ssh().port
    )


def _seconds(text: str) -> float:
    try:
        return read_duration(text) if text else 0.0
    except ValueError:
        return 0.0
