"""Owns the secrets of this host: read from a file of its user when a server is started, masked
wherever they come back. Records none.

A job names one as `secret://NAME`. The file has a line NAME=value each and is for its owner alone.
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
MIN_SECRET_LENGTH = 8  # a shorter value would be found, and masked, all over a log

_MIN_WORD_LENGTH = 12
_LINE = re.compile(rf"({NAME_PATTERN})=(.*)", re.ASCII)
_LARGEST_BYTES = 1 << 20
_OVERWRITE_BYTES = 1 << 20
V = TypeVar("V")


def secrets_file(env: Mapping[str, str]) -> Path:
    """`$BENCHFLEET_SECRETS`, else `secrets` in the configuration folder of this agent's user."""
    if env.get("BENCHFLEET_SECRETS"):
        return Path(env["BENCHFLEET_SECRETS"])
    config = env.get("XDG_CONFIG_HOME")
    return (
        (Path(config) if config else Path(env.get("HOME") or Path.home()) / ".config")
        / "benchfleet"
        / "secrets"
    )


def secret_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets that an environment refers to, each once."""
    return tuple(
        dict.fromkeys(
            value.removeprefix(SECRET_SCHEME)
            for value in env.values()
            if value.startswith(SECRET_SCHEME)
        )
    )


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets of one trial by name. Never printed: `repr` shows names only."""

    _values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self._values)

    def fill(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment with each `secret://NAME` replaced by its value: for the one process that
        is started, and for no record.
        """
        return {
            name: self._values.get(value.removeprefix(SECRET_SCHEME), value)
            if value.startswith(SECRET_SCHEME)
            else value
            for name, value in env.items()
        }

    def mask(self, value: V) -> V:
        """A copy of a frozen value, text, mapping or list in which `secret://NAME` stands wherever
        a secret stood.
        """
        masked: V = self._masked(value) if self._values else value
        return masked

    def mask_file(self, path: Path) -> bool:
        """Take the secrets out of a file; True when one was in it. In constant memory, and also
        where there is no room for a second one.

        Raises OSError when they stay in it.
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
                "%s cannot be written anew without its secrets (%s): they are painted over",
                path,
                error.strerror,
            )
            if fresh.is_file() and not fresh.is_symlink():
                fresh.unlink()
            _overwrite_secrets(path, [value for value, _ in pairs])
        return True

    def mask_or_remove(self, path: Path) -> bool:
        """`mask_file`, and what cannot be masked is removed: then False."""
        try:
            self.mask_file(path)
        except OSError as error:
            log.error(
                "%s cannot be masked (%s) and is removed: a secret may stand in it",
                path,
                error.strerror,
            )
            path.unlink(missing_ok=True)
            return False
        return True

    def mask_folder(self, folder: Path, keep: str = ".parquet") -> None:
        """Mask every file below a folder, but those of ours that hold no text of the server."""
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
        """(spelling, name), the longest first: a secret that holds another is masked whole. A
        reader of logs may have cut off pieces.
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
    """How a program may print a value: as it is, in JSON, in Python, in an address."""
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
    """Stars in place of each value, where it stands: that takes no room."""
    overlap, at = max(map(len, values)) - 1, 0
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while content := os.pread(descriptor, _OVERWRITE_BYTES + overlap, at):
            painted = _replace_all(content, [(value, b"*" * len(value)) for value in values])
            if painted != content and os.pwrite(descriptor, painted, at) < len(painted):
                raise OSError(errno.EIO, "not all of it could be written")
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
    """The secrets of these names. Raises ConfigError when the file or one of them is missing, or
    others may read the file.
    """
    wanted = tuple(names)
    if not wanted:
        return Secrets()
    known = _parse_secrets(_read_private_file(path, wanted), path)
    missing = [name for name in wanted if name not in known]
    if missing:
        message = f"{path} holds no secret {', '.join(missing)}"
        raise ConfigError(
            message,
            f"add a line {missing[0]}=VALUE to it"
            + (f"; it holds {', '.join(sorted(known))}" if known else ""),
        )
    return Secrets({name: known[name] for name in wanted})


def _read_private_file(path: Path, wanted: tuple[str, ...]) -> str:
    """The content of a file that is the agent's user's alone; judged on the open file, so that it
    cannot be exchanged in between.
    """
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(
                    f"the secrets file {path} is no regular file",
                    "name a plain file by BENCHFLEET_SECRETS",
                )
            if about.st_uid != os.geteuid():
                message = f"the secrets file {path} belongs to user {about.st_uid}, and the agent runs as {os.geteuid()}"
                raise ConfigError(message, f"chown {os.geteuid()} {path}")
            if stat.S_IMODE(about.st_mode) & 0o077:
                message = f"the secrets file {path} has mode {stat.S_IMODE(about.st_mode):04o}: others may read it"
                raise ConfigError(message, f"chmod 600 {path}")
            return file.read(_LARGEST_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        message = f"the job names the secret {wanted[0]}, and there is no secrets file {path} on this host"
        hint = f"install -m 600 /dev/null {path}, then add a line {wanted[0]}=VALUE"
        raise ConfigError(message, hint) from error
    except OSError as error:
        raise ConfigError(
            f"the secrets file {path} cannot be read: {error.strerror}", "see to its owner and mode"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the secrets file {path} is not UTF-8 text (byte {error.start})",
            "write NAME=value lines",
        ) from None


def _parse_secrets(text: str, path: Path) -> dict[str, str]:
    known: dict[str, str] = {}
    for number, line in enumerate((line.removesuffix("\r") for line in text.split("\n")), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise ConfigError(
                f"{path}, line {number}: not NAME=value",
                "a name has letters, digits and `_`; the value is taken as it is",
            )
        name, value = match.groups()
        if name in known:
            raise ConfigError(
                f"{path}, line {number}: {name} stands there twice", "keep one of the lines"
            )
        if len(value) < MIN_SECRET_LENGTH:
            message = f"{path}, line {number}: {name} has fewer than {MIN_SECRET_LENGTH} characters, too few to be told from other text of a log"
            raise ConfigError(message, "use a longer secret: a shorter one could not be masked")
        known[name] = value
    return known
