"""Owns the reading of files that a user names. Judges no content."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_protos.errors import ConfigError

if TYPE_CHECKING:
    from fleet_controller.job_file.job_loader import LoadedJob

LARGEST_BYTES = 64 << 20


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`. Raises ConfigError for anything that is not
    readable UTF-8 text.
    """
    try:
        return read_bytes(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name} is not UTF-8 text (byte {error.start})", "save it as UTF-8"
        ) from error


def read_job_file(name: str) -> LoadedJob:
    """A checked job from a file or standard input. Raises JobRejected with all findings,
    ConfigError when it cannot be read.
    """
    from fleet_controller.job_file.job_loader import load_job

    return load_job(read_bytes(name), name, base_folder(name))


def base_folder(name: str) -> Path:
    """From where the paths in a file are taken: its own folder, this one for standard input."""
    return Path() if name == "-" else Path(name).parent


def read_bytes(name: str) -> bytes:
    """The content of a file, or of standard input for `-`. Raises ConfigError when it cannot be
    read or is too large.
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
            f"{name} is larger than {LARGEST_BYTES >> 20} MiB", "is it the file that you meant?"
        )
    return content
