"""Owns `fleetctl diagnose`: reads files in chunks, hands them to the parsers, prints. Understands no line itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import BinaryIO

from fleet_controller.cli.console import Console
from fleet_controller.report.diagnosis import TEXT, Told, joined, lines_of, parts_of, told_of
from fleet_knowledge.log.reader import LogReader
from fleet_protos.errors import ConfigError, ExitCode

_CHUNK_BYTES = 1 << 20
_SHORT_BYTES = 8 << 20  # what is longer is a log and nothing else


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print what the files come to; 1 when they show a failure."""
    tellings = [told for name in arguments.files for told in _read(name)]
    if arguments.json:
        console.json(joined(tellings))
    else:
        console.lines(lines_of(tellings))
    return ExitCode.ANSWER_IS_BAD if any(told.failed for told in tellings) else ExitCode.DONE


def _read(name: str) -> list[Told]:
    """One file as one telling, or as several when it is a JSON document that gathers texts."""
    reader, size = LogReader(), 0
    kept: list[bytes] = []
    for chunk in _chunks(name):
        reader.feed(chunk)
        size += len(chunk)
        kept = [*kept, chunk] if size <= _SHORT_BYTES else []
    text = b"".join(kept).decode("utf-8", "replace")
    told = told_of(name, reader.finish(), text)
    parts = parts_of(text) if told.kind == TEXT or told.failed else {}
    return [_part(f"{name}[{key}]", part) for key, part in parts.items()] or [told]


def _part(name: str, text: str) -> Told:
    reader = LogReader()
    reader.feed(text.encode("utf-8", "replace"))
    return told_of(name, reader.finish(), text)


def _chunks(name: str) -> Iterator[bytes]:
    """The bytes of a file or of standard input. Raises ConfigError for one that cannot be read."""
    try:
        if name == "-":
            yield from _pieces(sys.stdin.buffer)
            return
        with open(name, "rb", buffering=0) as stream:
            yield from _pieces(stream)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}", "name a log file that exists and is readable") from error


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk
