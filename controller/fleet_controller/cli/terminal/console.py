"""Owns what is written to the user's terminal or pipe: width, colour, text and JSON. Knows nothing
of jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleet_protos.errors import ConfigError
from fleet_protos.escape import escape_all_but_colours

_STYLES = {
    "FASTER": "1;32", "SLOWER": "1;31", "EQUIVALENT": "36", "INCONCLUSIVE": "33", "error": "1;31", "warning": "33", "info": "36",
    "done": "32", "failed": "31", "cancelled": "33", "running": "36", "ok": "32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Console:
    """Standard output and error. `width` is None where lines may be as long as they need to be, as
    in a pipe.
    """

    tty: bool
    colour: bool
    width: int | None
    debug: bool = False

    def print_lines(self, lines: Iterable[str]) -> None:
        """Results, one line each, to standard output."""
        self.print_text("".join(f"{line}\n" for line in lines))

    def print_text(self, text: str) -> None:
        """A result that brings its own line ends."""
        try:
            sys.stdout.write(
                escape_all_but_colours(text) if self.tty else text
            )  # a pipe gets it as it is
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # else Python tries again, and complains, as it ends
            raise ConfigError(
                f"the result cannot be written: {error.strerror}",
                "write it to a place that has room",
            ) from error

    def print_json(self, value: Any) -> None:
        """A result as JSON; numbers that JSON cannot hold raise ValueError."""
        self.print_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def print_stderr(self, *lines: str) -> None:
        """Progress, hints and errors, to standard error."""
        sys.stderr.write(escape_all_but_colours("".join(f"{line}\n" for line in lines)))
        sys.stderr.flush()

    def styled(self, word: str, text: str = "") -> str:
        """`text` (or the word itself) in the colour that the word stands for, where colours are
        wanted.
        """
        style = _STYLES.get(word)
        return f"\033[{style}m{text or word}\033[0m" if self.colour and style else text or word


def process_console(debug: bool = False) -> Console:
    """The console of this process; NO_COLOR and TERM=dumb are respected, COLUMNS sets the width of
    a terminal.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="replace"
            )  # a terminal without UTF-8 shows ? and keeps the numbers
    tty = sys.stdout.isatty()
    colour = tty and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Console(tty, colour, shutil.get_terminal_size((80, 24)).columns if tty else None, debug)
