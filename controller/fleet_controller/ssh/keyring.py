"""Provides the private keys for SSH logins, from ssh-agent and from key files."""

from __future__ import annotations

import getpass
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from fleet_controller.core.inventory import Ssh
from fleet_protos.errors import ConfigError

DEFAULT_KEY_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_TRIES = 3


class Keyring:
    """The private keys that one command uses. Many threads may share a keyring, which asks for each
    passphrase only once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, paramiko.PKey | str] = {}
        self._agent: paramiko.Agent | None = None

    def keys(self, ssh: Ssh) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield (origin, key) in the order in which the keys should be tried: the keys of named
        files, of ssh-agent, and of default files.

        If ssh-agent holds the key of a named file, that key is used. Default files are tried only
        if no file is named. Raises ConfigError for a key file that cannot be used.
        """
        offered: set[bytes] = set()
        held = self._ssh_agent_keys() if ssh.use_agent else []
        named = tuple(str(Path(file).expanduser()) for file in ssh.identities)
        for file in named:
            public = _public_half(file)
            of_agent = next((key for key in held if public and key.asbytes() == public), None)
            key = of_agent or self._read_key_file(file, must_exist=True)
            offered.add(key.asbytes())
            yield (f"ssh-agent ({file})" if of_agent else file), key
        for key in held:
            if key.asbytes() not in offered:
                offered.add(key.asbytes())
                yield "ssh-agent", key
        for file in (
            () if named else map(lambda name: str(Path(name).expanduser()), DEFAULT_KEY_FILES)
        ):
            if Path(file).is_file() and _public_half(file) not in offered:
                yield file, self._read_key_file(file, must_exist=False)

    def close(self) -> None:
        """Close the connection to ssh-agent."""
        if self._agent is not None:
            self._agent.close()

    def _ssh_agent_keys(self) -> list[paramiko.AgentKey]:
        with self._lock:
            try:
                self._agent = self._agent or paramiko.Agent()
            except (paramiko.SSHException, OSError):
                return []
            return list(self._agent.get_keys())

    def _read_key_file(self, file: str, *, must_exist: bool) -> paramiko.PKey:
        with self._lock:  # ask for one passphrase at a time
            if file not in self._files:
                try:
                    self._files[file] = _load_key(file)
                except ConfigError as error:
                    self._files[file] = error.message + "\n" + error.hint
            found = self._files[file]
        if isinstance(found, str):
            message, _, hint = found.partition("\n")
            raise ConfigError(message, hint)
        return found


def _public_half(file: str) -> bytes:
    """Return the public key in FILE.pub, which needs no passphrase. Return empty bytes if the file
    cannot be read.
    """
    try:
        words = Path(file + ".pub").read_text(encoding="utf-8").split()
        return paramiko.PKey.from_type_string(words[0], _decode_base64(words[1])).asbytes()
    except (OSError, ValueError, IndexError, paramiko.SSHException):
        return b""


def _decode_base64(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


def _load_key(file: str) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(file)
    except (paramiko.PasswordRequiredException, TypeError):
        return _load_with_passphrase(file)
    except OSError as error:
        raise ConfigError(
            f"cannot read the key file {file}: {error.strerror}",
            "name another file with `identity` in the fleet file",
        ) from error
    except (paramiko.SSHException, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"key file {file} cannot be used: {error}",
            "the file must hold a private key of type Ed25519, ECDSA or RSA",
        ) from error


def _load_with_passphrase(file: str) -> paramiko.PKey:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"key file {file} has a passphrase, and there is no terminal to ask for it",
            f"add the key to ssh-agent: eval $(ssh-agent) && ssh-add {file}; "
            "or run this command in a terminal",
        )
    for _ in range(_TRIES):
        passphrase = getpass.getpass(f"Passphrase of {file}: ")
        try:
            return paramiko.PKey.from_path(file, passphrase)
        except (paramiko.SSHException, ValueError):
            sys.stderr.write("Wrong passphrase.\n")
    raise ConfigError(
        f"key file {file}: a wrong passphrase was entered {_TRIES} times",
        f"add the key to ssh-agent: ssh-add {file}",
    )
