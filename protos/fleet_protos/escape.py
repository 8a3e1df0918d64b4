"""Escapes untrusted text for output, so that the text cannot move the cursor, hide a word or start
a line.

Untrusted text comes from servers, agents and job files. It appears in logs, failure messages and
labels. The escapes are those of JSON, so escaped JSON stays JSON.
"""

from __future__ import annotations

import logging
import re
import sys

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# C0 except tab and newline, DEL and C1, marks of direction, invisible and tag characters, line
# separators, surrogates
_UNPRINTABLE_RANGES = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_UNPRINTABLE = re.compile(f"[{_UNPRINTABLE_RANGES}]")
# The SGR sequences that we write: set or end a foreground colour, bold, dim, italic, underlined;
# never a background, blinking or hidden text
_SGR = r"(?:0|1|2|3|4|22|23|24|39|3[0-7]|9[0-7])"
_COLOUR = rf"\x1b\[(?:{_SGR}(?:;{_SGR})*)?m"
_COLOUR_OR_UNPRINTABLE = re.compile(f"{_COLOUR}|[{_UNPRINTABLE_RANGES}]")


def escape_unprintable(text: str) -> str:
    """Return the text in a form that is safe to print. Line ends and tabs stay, a carriage return
    becomes a line end, and invisible characters are escaped.
    """
    return (
        _UNPRINTABLE.sub(_escape_match, _normalise_line_ends(text))
        if _UNPRINTABLE.search(text)
        else text
    )


def escape_all_but_colours(text: str) -> str:
    """Escape like `escape_unprintable`, but keep our own colour sequences."""
    return _COLOUR_OR_UNPRINTABLE.sub(
        lambda match: match[0] if len(match[0]) > 1 else _escape_match(match),
        _normalise_line_ends(text),
    )


def escape_to_one_line(text: str) -> str:
    """Escape like `escape_unprintable`, and escape line ends too."""
    return escape_unprintable(text).replace("\n", "\\n")


def _normalise_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _escape_match(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class EscapingFormatter(logging.Formatter):
    """Formats each log record as one line, whatever its message contains. The lines of a traceback
    follow, indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record as one line, without its traceback."""
        record.message = escape_to_one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, with the lines of its traceback below."""
        first, *rest = escape_unprintable(super().format(record)).split("\n")
        return "\n".join([first, *(f"    {line}" for line in rest)])


def log_to_stderr() -> None:
    """Write a daemon's log to standard error: messages of level INFO and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
