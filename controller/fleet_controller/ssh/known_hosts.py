"""Checks the key of a host against the known_hosts files. Unknown, changed and revoked keys are
refused.
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
    """The error for a host key that is unknown, changed or revoked."""


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The known host keys, the revoked host keys, and the files that hold both. New keys belong
    into the first file.
    """

    keys: paramiko.HostKeys
    revoked: frozenset[str]
    files: tuple[str, ...]

    @classmethod
    def read(cls, files: Sequence[str]) -> KnownHosts:
        """Read these files, or OpenSSH's own files if none is given. Missing files are skipped."""
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
        """Return the types of a host's known keys. The host should be asked for a key of these
        types first.
        """
        return list(self.keys.lookup(known_hosts_name(ssh)) or ())

    def check(self, ssh: Ssh, key: paramiko.PKey) -> None:
        """Raise HostKeyRefused unless `key` is the known key of the host."""
        known: Mapping[str, paramiko.PKey] = self.keys.lookup(known_hosts_name(ssh)) or {}
        shown = f"{key.get_name()} {fingerprint(key)}"
        if key.get_base64() in self.revoked:
            raise HostKeyRefused(
                f"{display_name(ssh)} has the host key {shown}, which is revoked",
                "do not connect; ask the administrator of the host",
            )
        if known.get(key.get_name()) == key:
            return
        show_command = _show_fingerprint_command(key)
        add_command = _add_key_command(ssh, key.get_name(), self.files[0])
        if known:
            raise self._changed_key_error(
                ssh, shown, [f"{kind} {fingerprint(one)}" for kind, one in known.items()]
            )
        raise HostKeyRefused(
            f"{display_name(ssh)} has a host key that is not in {self.files[0]}: {shown}",
            f"compare this key with the one that `{show_command}` prints on the host's console; "
            f"if they are the same, add the key: {add_command}",
        )

    def _changed_key_error(self, ssh: Ssh, shown: str, known: list[str]) -> HostKeyRefused:
        holder = next(
            (file for file in self.files if _file_has_host(file, known_hosts_name(ssh))),
            self.files[0],
        )
        remove_command = shlex.join(["ssh-keygen", "-R", known_hosts_name(ssh), "-f", holder])
        kind = shown.split()[0]
        key_file, add_command = _host_key_file(kind), _add_key_command(ssh, kind, holder)
        return HostKeyRefused(
            f"{display_name(ssh)} has another host key than before: {shown};"
            f" {holder} has {', '.join(known)}."
            " Either the host was reinstalled, or another machine answers at its address",
            f"compare the new key with the one that `ssh-keygen -lf {key_file}` prints on the "
            f"host's console; only if they are the same, run {remove_command}, then {add_command}",
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
    """Return the name under which known_hosts lists a host."""
    if ssh.host_key_alias:
        return ssh.host_key_alias
    return ssh.address if ssh.port == 22 else f"[{ssh.address}]:{ssh.port}"


def display_name(ssh: Ssh) -> str:
    """Return the name of a host for use in messages."""
    return ssh.address if ssh.port == 22 else f"{ssh.address} port {ssh.port}"


def fingerprint(key: paramiko.PKey) -> str:
    """Return the fingerprint of a key as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def _host_key_file(kind: str) -> str:
    short = next((name for name in ("ed25519", "ecdsa", "rsa") if name in kind), "ed25519")
    return f"/etc/ssh/ssh_host_{short}_key.pub"


def _show_fingerprint_command(key: paramiko.PKey) -> str:
    return f"ssh-keygen -lf {_host_key_file(key.get_name())}"


def _add_key_command(ssh: Ssh, kind: str, file: str) -> str:
    """Return the shell command that adds a host's key to `file`. Behind jump hosts, it scans the
    key from the last jump host.
    """
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
