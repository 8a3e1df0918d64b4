"""Writes results to standard output and messages to standard error, on a terminal or a pipe."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleet_controller.report.table import WORD_STYLES
from fleet_protos.errors import ConfigError
from fleet_protos.escape import escape_all_but_colours

_ANSI_CODES = {
    "bold green": "1;32",
    "bold red": "1;31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}


@dataclass(frozen=True, slots=True)
class Console:
    """Standard output and error. `width` is in cells. None means that lines may have any length."""

    tty: bool
    colour: bool
    width: int | None
    debug: bool = False

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print results to standard output, each on its own line."""
        self.print_text("".join(f"{line}\n" for line in lines))

    def print_text(self, text: str) -> None:
        """Print a result that has its own line ends. On a terminal, its control characters are
        escaped.

        Raises ConfigError if standard output cannot be written, such as on a full disk.
        """
        try:
            sys.stdout.write(escape_all_but_colours(text) if self.tty else text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # Otherwise Python retries the write at exit, and prints another error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise ConfigError(
                f"cannot write the result: {error.strerror}",
                "write the result to a place with enough free space",
            ) from error

    def print_json(self, value: Any) -> None:
        """Print a result as JSON. Raises ValueError for numbers that JSON cannot represent."""
        self.print_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def print_stderr(self, *lines: str) -> None:
        """Print progress, hints and errors to standard error."""
        sys.stderr.write(escape_all_but_colours("".join(f"{line}\n" for line in lines)))
        sys.stderr.flush()

    def styled(self, word: str, text: str = "") -> str:
        """Return `text` in the colour that belongs to `word`, if colours are on. An empty `text`
        means `word`.
        """
        code = _ANSI_CODES.get(WORD_STYLES.get(word, ""))
        return f"\033[{code}m{text or word}\033[0m" if self.colour and code else text or word


def process_console(debug: bool = False) -> Console:
    """Return the console of this process.

    NO_COLOR and TERM=dumb turn colours off. COLUMNS sets the width of a terminal.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # without UTF-8, print ? for what it cannot show
    tty = sys.stdout.isatty()
    colour = tty and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Console(tty, colour, shutil.get_terminal_size((80, 24)).columns if tty else None, debug)
