"""Owns the check of a host's key: unknown and changed ones are refused, with the command that mends
it. Adds none.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from fleet_controller.core.inventory import Ssh
from fleet_protos.errors import ConfigError

USER_FILE, SYSTEM_FILE = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"


class HostKeyRefused(ConfigError):
    """The host showed a key that is not the one known, or none is known."""


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """What is known of host keys, and the files it stands in; the first one is where a new key
    belongs.
    """

    keys: paramiko.HostKeys
    revoked: frozenset[str]
    files: tuple[str, ...]

    @classmethod
    def read(cls, files: Sequence[str]) -> KnownHosts:
        """From these files, else OpenSSH's own. A file that is not there knows nothing."""
        named = [str(Path(file).expanduser()) for file in (files or (USER_FILE, SYSTEM_FILE))]
        keys, revoked = paramiko.HostKeys(), set()
        for file in named:
            try:
                lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for line in lines:
                words = line.split()
                if words[:1] == ["@revoked"] and len(words) > 3:
                    revoked.add(words[3])
                elif words and not words[0].startswith(("#", "@")):
                    _add(keys, line)
        return cls(keys, frozenset(revoked), tuple(named))

    def key_types(self, ssh: Ssh) -> list[str]:
        """Types of the keys known of a host: it is asked for these first."""
        return list(self.keys.lookup(known_hosts_name(ssh)) or ())

    def check(self, ssh: Ssh, key: paramiko.PKey) -> None:
        """Raises HostKeyRefused unless `key` is the one known."""
        known: Mapping[str, paramiko.PKey] = self.keys.lookup(known_hosts_name(ssh)) or {}
        shown = f"{key.get_name()} {fingerprint(key)}"
        if key.get_base64() in self.revoked:
            raise HostKeyRefused(
                f"{display_name(ssh)} shows the key {shown}, which is revoked",
                "do not connect; ask who runs that host",
            )
        if known.get(key.get_name()) == key:
            return
        if known:
            raise self._changed_key_error(
                ssh, shown, [f"{kind} {fingerprint(one)}" for kind, one in known.items()]
            )
        raise HostKeyRefused(
            f"{display_name(ssh)} shows a host key that is not in {self.files[0]}: {shown}",
            f"compare it on the host's own console: {_show_fingerprint_command(key)}; when it is the same: {_add_key_command(ssh, key.get_name(), self.files[0])}",
        )

    def _changed_key_error(self, ssh: Ssh, shown: str, known: list[str]) -> HostKeyRefused:
        holder = next(
            (file for file in self.files if _file_has_host(file, known_hosts_name(ssh))),
            self.files[0],
        )
        removing = shlex.join(["ssh-keygen", "-R", known_hosts_name(ssh), "-f", holder])
        kind = shown.split()[0]
        return HostKeyRefused(
            f"{display_name(ssh)} shows another host key than before: {shown}; {holder} has {', '.join(known)}. "
            "Either the host was set up anew, or somebody answers in its place",
            f"compare on the host's own console: ssh-keygen -lf {_host_key_file(kind)}; only when it is the new one: {removing}, then "
            f"{_add_key_command(ssh, kind, holder)}",
        )


def _add(keys: paramiko.HostKeys, line: str) -> None:
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(line)
    except (paramiko.SSHException, ValueError):
        return
    if entry is not None and entry.hostnames and entry.key is not None:
        for name in entry.hostnames:
            keys.add(name, entry.key.get_name(), entry.key)


def _file_has_host(file: str, name: str) -> bool:
    return name in KnownHosts.read([file]).keys


def known_hosts_name(ssh: Ssh) -> str:
    """The name under which known_hosts has it."""
    if ssh.host_key_alias:
        return ssh.host_key_alias
    return ssh.address if ssh.port == 22 else f"[{ssh.address}]:{ssh.port}"


def display_name(ssh: Ssh) -> str:
    """For messages."""
    return ssh.address if ssh.port == 22 else f"{ssh.address} port {ssh.port}"


def fingerprint(key: paramiko.PKey) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def _host_key_file(kind: str) -> str:
    short = next((name for name in ("ed25519", "ecdsa", "rsa") if name in kind), "ed25519")
    return f"/etc/ssh/ssh_host_{short}_key.pub"


def _show_fingerprint_command(key: paramiko.PKey) -> str:
    return f"ssh-keygen -lf {_host_key_file(key.get_name())}"


def _add_key_command(ssh: Ssh, kind: str, file: str) -> str:
    """The command that adds the key. A host behind others cannot be scanned from here."""
    short = next((name for name in ("ed25519", "ecdsa", "rsa") if name in kind), "ed25519")
    scan = [
        "ssh-keyscan",
        *([] if ssh.port == 22 else ["-p", str(ssh.port)]),
        "-t",
        short,
        ssh.address,
    ]
    if ssh.jumps:
        last = ssh.jumps[-1]
        port = ["-p", str(last.port)] if last.port != 22 else []
        through = ["ssh", *port, f"{last.user}@{last.address}" if last.user else last.address]
        return f"{shlex.join([*through, shlex.join(scan)])} >> {shlex.quote(file)}"
    if ssh.host_key_alias:
        return f"{shlex.join(scan)} | sed 's/^[^ ]*/{ssh.host_key_alias}/' >> {shlex.quote(file)}"
    return f"{shlex.join(scan)} >> {shlex.quote(file)}"
