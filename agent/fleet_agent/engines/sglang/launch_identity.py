"""Owns the comparison of what a server says of its own launch with the launch that we made. Pure; a
server that says nothing agrees.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

_TAKEN_OUT = (
    "--config",
    "--model-type",
)  # replaced by what the file holds; read by `sglang serve` itself
_HIDDEN = (
    "--api-key",
    "--admin-api-key",
    "--ssl-keyfile-password",
    "--watermark-config",
    "--watermark-key",
    "--watermark-key-b",
)


def launch_difference(info: Mapping[str, Any], url: str, words: Sequence[str]) -> str:
    """How the server behind /server_info differs from the one launched with `words`; empty when it
    may be that one.

    Its port, and its `launch_command` (0.5.10 - 0.5.23, joined by blanks, so that words are
    compared blank by blank). A word it has more is no difference: 0.5.10 - 0.5.18 show the program
    too.
    """
    port, reported_port = urlsplit(url).port, info.get("port")
    if isinstance(reported_port, int) and port is not None and reported_port != port:
        return f"it says that it listens at port {reported_port}"
    command = info.get("launch_command")
    if not isinstance(command, str) or not command or not words:
        return ""
    ours = Counter(_parts(words))
    missing = min(
        (list((ours - Counter(shown)).elements()) for shown in _split_command(command)), key=len
    )
    return f"it was launched without {' '.join(missing[:4])}" if missing else ""


def _split_command(command: str) -> Iterator[list[str]]:
    """The words of a joined command: as they stand, and, where they are quoted as for a shell,
    without the quotes.
    """
    yield command.split()
    with suppress(ValueError):
        yield [part for word in shlex.split(command) for part in word.split()]


def _parts(words: Sequence[str]) -> list[str]:
    """The words as a joined command shows them, without the values of those that are not shown."""
    shown: list[str] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if before in _HIDDEN or before in _TAKEN_OUT or word in _TAKEN_OUT:
            continue
        shown += word.split()
    return shown
