"""Owns the reading of files that a user names. Parses nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from fleet_protos.errors import ConfigError

LARGEST_BYTES = 64 << 20


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`. Raises ConfigError for anything that is not readable UTF-8 text."""
    try:
        if name == "-":
            return sys.stdin.read()
        path = Path(name)
        if path.is_file() and path.stat().st_size > LARGEST_BYTES:
            raise ConfigError(f"{name} is larger than {LARGEST_BYTES >> 20} MiB", "is it the file that you meant?")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}", "name a file that exists and is readable") from error
