"""Owns how text that others wrote is shown: nothing in it moves a cursor, hides a word or begins a
line of its own. Prints nothing.

Others are servers, agents, job files: their words stand in logs, failure messages, labels. Escapes
are those of JSON, so JSON stays JSON.
"""

from __future__ import annotations

import logging
import re
import sys

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# C0 but tab and newline, DEL and C1, marks of direction, invisible and tag characters, line
# separators, surrogates
_UNPRINTABLE_RANGES = "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
_UNPRINTABLE = re.compile(f"[{_UNPRINTABLE_RANGES}]")
# Colours as we write them ourselves: set or end one, bold, dim, underlined; never a background,
# blinking or hidden text
_COLOUR = r"\x1b\[(?:(?:0|1|2|3|4|22|23|24|39|3[0-7]|9[0-7])(?:;(?:0|1|2|3|4|22|23|24|39|3[0-7]|9[0-7]))*)?m"
_COLOUR_OR_UNPRINTABLE = re.compile(f"{_COLOUR}|[{_UNPRINTABLE_RANGES}]")


def escape_unprintable(text: str) -> str:
    """The text as it may be printed: line ends and tabs stay, a carriage return ends a line, what
    nobody sees is escaped.
    """
    return (
        _UNPRINTABLE.sub(_escape_match, _normalise_line_ends(text))
        if _UNPRINTABLE.search(text)
        else text
    )


def escape_all_but_colours(text: str) -> str:
    """The same for text in which colours were set."""
    return _COLOUR_OR_UNPRINTABLE.sub(
        lambda match: match[0] if len(match[0]) > 1 else _escape_match(match),
        _normalise_line_ends(text),
    )


def escape_to_one_line(text: str) -> str:
    """The same as one line."""
    return escape_unprintable(text).replace("\n", "\\n")


def _normalise_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _escape_match(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class EscapingFormatter(logging.Formatter):
    """One record is one line, whatever is in its message; a traceback keeps its lines, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        record.message = escape_to_one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback."""
        first, *rest = escape_unprintable(super().format(record)).split("\n")
        return "\n".join([first, *(f"    {line}" for line in rest)])


def log_to_stderr() -> None:
    """Logging of a daemon: to standard error, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
