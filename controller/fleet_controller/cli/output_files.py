"""Writes the files that a user asks for with `-o`."""

from __future__ import annotations

from pathlib import Path

from fleet_protos.errors import ConfigError


def write_output_file(name: str, text: str, *, overwrite: bool) -> None:
    """Write `text` to the file `name`.

    Raises ConfigError if the file exists and `overwrite` is False. Raises ConfigError if it cannot
    be written.
    """
    path = Path(name)
    if path.exists() and not overwrite:
        raise ConfigError(
            f"{path} exists already; nothing was written",
            "add --force to overwrite the file, or name another file",
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", "name a file that you may write"
        ) from error
