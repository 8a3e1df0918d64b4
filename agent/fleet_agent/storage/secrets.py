"""Reads the host's secrets when a server is started, and masks them in everything that is kept.

A job refers to a secret as `secret://NAME`. The secrets file has lines NAME=value, and only its
owner may read it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import stat
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fleet_agent.storage.log_limits import read_data_chunks
from fleet_protos.errors import ConfigError

log = logging.getLogger(__name__)

SECRET_SCHEME = "secret://"
NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
MIN_SECRET_LENGTH = 8  # characters; a shorter value would match unrelated text of a log

_MIN_WORD_LENGTH = 12
_LINE = re.compile(rf"({NAME_PATTERN})=(.*)", re.ASCII)
_LARGEST_BYTES = 1 << 20
_OVERWRITE_BYTES = 1 << 20
V = TypeVar("V")


def secrets_file(env: Mapping[str, str]) -> Path:
    """Return the path of the secrets file: `$BENCHFLEET_SECRETS` if that is set, otherwise
    benchfleet/secrets in the user's configuration folder.
    """
    if env.get("BENCHFLEET_SECRETS"):
        return Path(env["BENCHFLEET_SECRETS"])
    config = env.get("XDG_CONFIG_HOME")
    return (
        (Path(config) if config else Path(env.get("HOME") or Path.home()) / ".config")
        / "benchfleet"
        / "secrets"
    )


def secret_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the secrets that an environment refers to, without duplicates."""
    return tuple(
        dict.fromkeys(
            value.removeprefix(SECRET_SCHEME)
            for value in env.values()
            if value.startswith(SECRET_SCHEME)
        )
    )


@dataclass(frozen=True, slots=True)
class Secrets:
    """Holds the secrets of one trial by name. `repr` shows neither names nor values."""

    _values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self._values)

    def fill(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with each `secret://NAME` replaced by its value.

        The result is for the started process only and must not be recorded.
        """
        return {
            name: self._values.get(value.removeprefix(SECRET_SCHEME), value)
            if value.startswith(SECRET_SCHEME)
            else value
            for name, value in env.items()
        }

    def with_secret(self, name: str, value: str) -> Secrets:
        """Return these secrets and one more."""
        return Secrets({**self._values, name: value})

    def mask(self, value: V) -> V:
        """Return a copy of the value with each secret replaced by `secret://NAME`.

        Masks texts, and texts inside mappings, lists, tuples and dataclasses. Other values stay as
        they are.
        """
        masked: V = self._masked(value) if self._values else value
        return masked

    def mask_file(self, path: Path) -> bool:
        """Replace the secrets in a file by `secret://NAME`. Return whether the file had secrets.

        Uses constant memory. If the disk has no room for a second file, the secrets are overwritten
        in place. Raises OSError if the secrets could not be removed.
        """
        pairs = self._byte_pairs()
        if not pairs or not _contains_any(path, [value for value, _ in pairs]):
            return False
        fresh = path.with_name(f"{path.name}.masked")
        try:
            _write_masked(path, fresh, pairs)
            fresh.replace(path)
        except OSError as error:
            log.warning(
                "%s cannot be rewritten without its secrets (%s): they are overwritten in place",
                path,
                error.strerror,
            )
            if fresh.is_file() and not fresh.is_symlink():
                fresh.unlink()
            _overwrite_secrets(path, [value for value, _ in pairs])
        return True

    def mask_or_remove(self, path: Path) -> bool:
        """Mask the secrets in a file. If that fails, remove the file and return False."""
        try:
            self.mask_file(path)
        except OSError as error:
            log.error(
                "%s cannot be masked (%s) and is removed, since it may contain a secret",
                path,
                error.strerror,
            )
            path.unlink(missing_ok=True)
            return False
        return True

    def mask_folder(self, folder: Path, keep: str = ".parquet") -> None:
        """Mask the secrets in every file below a folder, except in files with the suffix `keep`.

        The excepted Parquet files are written by the agent and contain no text of the server.
        """
        if self._values:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink() and path.suffix != keep:
                    self.mask_or_remove(path)

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            for found, name in self._pairs():
                value = value.replace(found, f"{SECRET_SCHEME}{name}")
            return value
        if isinstance(value, Mapping):
            return {self._masked(key): self._masked(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._masked(entry) for entry in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(
                value,
                **{item.name: self._masked(getattr(value, item.name)) for item in fields(value)},
            )
        return value

    def _pairs(self) -> list[tuple[str, str]]:
        """Return (spelling, name) pairs, the longest spelling first, because a secret may contain
        another secret.

        Long words of each secret are included, because a log may show only a piece of the secret.
        """
        found = {
            spelling: name
            for name, value in self._values.items()
            for spelling in (*_spellings(value), *_long_words(value))
        }
        return sorted(found.items(), key=lambda pair: -len(pair[0]))

    def _byte_pairs(self) -> list[tuple[bytes, bytes]]:
        return [
            (spelling.encode(), f"{SECRET_SCHEME}{name}".encode())
            for spelling, name in self._pairs()
        ]


def _spellings(value: str) -> set[str]:
    """Return the forms in which a program may print a value: plain, JSON, Python, URL-encoded."""
    quoted = {urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)}
    return {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        *quoted,
    }


def _long_words(value: str) -> list[str]:
    return [
        piece for piece in re.split(r"[^A-Za-z0-9_.+/=-]+", value) if len(piece) >= _MIN_WORD_LENGTH
    ]


def _replace_all(content: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    for value, name in pairs:
        content = content.replace(value, name)
    return content


def _write_masked(path: Path, fresh: Path, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    overlap = max(len(value) for value, _ in pairs) - 1
    with open(
        os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb"
    ) as target:
        held = b""
        for chunk in read_data_chunks(path):
            held = _replace_all(held + chunk, pairs)
            sure = max(0, len(held) - overlap)
            target.write(held[:sure])
            held = held[sure:]
        target.write(held)


def _overwrite_secrets(path: Path, values: Sequence[bytes]) -> None:
    """Overwrite each value in place with asterisks. This needs no disk space."""
    overlap, at = max(map(len, values)) - 1, 0
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while content := os.pread(descriptor, _OVERWRITE_BYTES + overlap, at):
            painted = _replace_all(content, [(value, b"*" * len(value)) for value in values])
            if painted != content and os.pwrite(descriptor, painted, at) < len(painted):
                raise OSError(errno.EIO, "short write")
            at += _OVERWRITE_BYTES
    finally:
        os.close(descriptor)


def _contains_any(path: Path, values: list[bytes]) -> bool:
    overlap, held = max(map(len, values)) - 1, b""
    for chunk in read_data_chunks(path):
        held += chunk
        if any(value in held for value in values):
            return True
        held = held[-overlap:] if overlap else b""
    return False


def read_secrets(names: Iterable[str], path: Path) -> Secrets:
    """Read the secrets with the given names from the secrets file.

    Raises ConfigError if the file or a secret is missing, or if other users may read the file.
    """
    wanted = tuple(names)
    if not wanted:
        return Secrets()
    known = _parse_secrets(_read_private_file(path, wanted), path)
    missing = [name for name in wanted if name not in known]
    if missing:
        first, names, present = missing[0], ", ".join(missing), ", ".join(sorted(known))
        raise ConfigError(
            f"the secrets file {path} has no secret {names}",
            f"add a line {first}=VALUE to this file" + (f"; it has {present}" if known else ""),
        )
    return Secrets({name: known[name] for name in wanted})


def _read_private_file(path: Path, wanted: tuple[str, ...]) -> str:
    """Return the content of a file that only the agent's user may read.

    Owner and mode are checked on the open file, so that nobody can replace the file between check
    and reading.
    """
    name = wanted[0]
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            return file.read(_LARGEST_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        message = (
            f"the job needs the secret {name}, but the secrets file {path} does not exist on this "
            "host"
        )
        hint = f"run install -m 600 /dev/null {path}, then add a line {name}=VALUE to that file"
        raise ConfigError(message, hint) from error
    except OSError as error:
        raise ConfigError(
            f"the secrets file {path} cannot be read: {error.strerror}",
            "check the owner and the mode of the file",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the secrets file {path} is not UTF-8 text (byte {error.start})",
            "write NAME=value lines",
        ) from None


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(
            f"the secrets file {path} is not a regular file",
            "set BENCHFLEET_SECRETS to the path of a regular file",
        )
    user = os.geteuid()
    if (owner := status.st_uid) != user:
        message = (
            f"the secrets file {path} belongs to user {owner}, but the agent runs as user {user}"
        )
        raise ConfigError(message, f"chown {user} {path}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        message = f"the secrets file {path} has mode {mode:04o}, so other users may read it"
        raise ConfigError(message, f"chmod 600 {path}")


def _parse_secrets(text: str, path: Path) -> dict[str, str]:
    known: dict[str, str] = {}
    for number, line in enumerate((line.removesuffix("\r") for line in text.split("\n")), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise ConfigError(
                f"{path}, line {number}: the line is not NAME=value",
                "write a name of letters, digits and `_`, then = and the value without quotes",
            )
        name, value = match.groups()
        if name in known:
            raise ConfigError(
                f"{path}, line {number}: {name} is defined twice", "remove one of the two lines"
            )
        if len(value) < MIN_SECRET_LENGTH:
            raise ConfigError(
                f"{path}, line {number}: {name} has fewer than {MIN_SECRET_LENGTH} characters",
                "use a longer secret: a shorter one cannot be masked in logs",
            )
        known[name] = value
    return known
