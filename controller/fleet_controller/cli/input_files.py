"""Reads the files that a user names on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from fleet_protos.errors import ConfigError

LARGEST_BYTES = 64 << 20


def read_text(name: str) -> str:
    """Read the text of a file, or of standard input for `-`.

    Raises ConfigError for anything that is not readable UTF-8 text.
    """
    try:
        return read_bytes(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name} is not UTF-8 text (byte {error.start})", "save it as UTF-8"
        ) from error


def base_folder(name: str) -> Path:
    """Return the folder that relative paths in a file start from. This is the folder of the file,
    or the current folder for standard input.
    """
    return Path() if name == "-" else Path(name).parent


def read_bytes(name: str) -> bytes:
    """Read the content of a file, or of standard input for `-`.

    Raises ConfigError when it cannot be read or is larger than LARGEST_BYTES.
    """
    try:
        if name == "-":
            return sys.stdin.buffer.read(LARGEST_BYTES + 1)
        with Path(name).open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {name}: {error.strerror}", "name a file that exists and is readable"
        ) from error
    if len(content) > LARGEST_BYTES:
        raise ConfigError(
            f"{name} is larger than {LARGEST_BYTES >> 20} MiB",
            "check that this is the file that you meant",
        )
    return content
