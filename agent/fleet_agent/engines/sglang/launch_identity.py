"""Compares what a server reports about its own launch with the launch that the agent made."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

# Not shown: `--config` is replaced by the content of the file, and only `sglang serve` reads
# `--model-type`.
_TAKEN_OUT = ("--config", "--model-type")
_HIDDEN = (
    "--api-key",
    "--admin-api-key",
    "--ssl-keyfile-password",
    "--watermark-config",
    "--watermark-key",
    "--watermark-key-b",
)


def launch_difference(info: Mapping[str, Any], url: str, words: Sequence[str]) -> str:
    """Return how the server behind /server_info differs from the one launched with `words`.

    An empty text means that it may be the same server; a server that reports nothing counts as the
    same. The port is compared, and `launch_command` (0.5.10 - 0.5.23). That text is joined by
    blanks, so it is compared blank by blank. Additional words do not count as a difference: 0.5.10
    - 0.5.18 show the program too.
    """
    port, reported_port = urlsplit(url).port, info.get("port")
    if isinstance(reported_port, int) and port is not None and reported_port != port:
        return f"it reports that it listens at port {reported_port}"
    command = info.get("launch_command")
    if not isinstance(command, str) or not command or not words:
        return ""
    ours = Counter(_parts(words))
    missing = min(
        (list((ours - Counter(shown)).elements()) for shown in _split_command(command)), key=len
    )
    return f"it was launched without {' '.join(missing[:4])}" if missing else ""


def _split_command(command: str) -> Iterator[list[str]]:
    """Yield the words of a joined command as they are and, if they can be read as quoted for a
    shell, without the quotes.
    """
    yield command.split()
    with suppress(ValueError):
        yield [part for word in shlex.split(command) for part in word.split()]


def _parts(words: Sequence[str]) -> list[str]:
    """Return the words as a joined command shows them, without the values that it does not show."""
    shown: list[str] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if before in _HIDDEN or before in _TAKEN_OUT or word in _TAKEN_OUT:
            continue
        shown += word.split()
    return shown
