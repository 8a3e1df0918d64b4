"""Checks whether the agent launched a server, from what the server reports about its own launch."""

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
    """Return how the launch that /server_info reports differs from the agent's own launch with
    `words`. Return an empty text if the two may be the same.

    Two values are compared: the port, and `launch_command`, which SGLang 0.5.10 - 0.5.23 report.
    `launch_command` joins the words with blanks, so it is split at blanks before it is compared.
    Additional words are no difference, because 0.5.10 - 0.5.18 also show the program. A server that
    reports nothing counts as the same launch.
    """
    port, reported_port = urlsplit(url).port, info.get("port")
    if isinstance(reported_port, int) and port is not None and reported_port != port:
        return f"it reports port {reported_port}"
    command = info.get("launch_command")
    if not isinstance(command, str) or not command or not words:
        return ""
    ours = Counter(_parts(words))
    missing = min(
        (list((ours - Counter(shown)).elements()) for shown in _split_command(command)), key=len
    )
    words_missing = " ".join(missing[:4])
    return f"it was launched without the words `{words_missing}`" if missing else ""


def _split_command(command: str) -> Iterator[list[str]]:
    """Yield the words between the blanks of a joined command. Then yield the words without quotes,
    if the command can be read as shell text.
    """
    yield command.split()
    with suppress(ValueError):
        yield [part for word in shlex.split(command) for part in word.split()]


def _parts(words: Sequence[str]) -> list[str]:
    """Return `words` as a joined command shows them: split at blanks, without the values that
    SGLang hides.
    """
    shown: list[str] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if before in _HIDDEN or before in _TAKEN_OUT or word in _TAKEN_OUT:
            continue
        shown += word.split()
    return shown
