"""Implements `fleetctl diagnose`: reads server logs and tool output, and prints what they show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import BinaryIO

from fleet_controller.cli.terminal.console import Console
from fleet_controller.report.diagnosis_output import (
    TEXT,
    FileDiagnosis,
    diagnose_file,
    diagnosis_lines,
    embedded_texts,
    merge_diagnoses,
)
from fleet_knowledge.server_log.diagnosis.log_diagnosis import UNKNOWN
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_protos.errors import ConfigError, ExitCode

_CHUNK_BYTES = 1 << 20
_SHORT_BYTES = 8 << 20  # a longer file is a log; it is not kept in memory for other parsers
# First bytes of a compressed file → (what it is, the command that decompresses it)
_COMPRESSED = {
    b"\x1f\x8b": ("compressed with gzip", "gunzip -c"),
    b"\xfd7zXZ\x00": ("compressed with xz", "xz -dc"),
    b"BZh": ("compressed with bzip2", "bunzip2 -c"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "zstd -dc"),
    b"PK\x03\x04": ("a zip archive", "unzip -p"),
}
_UTF16 = ("UTF-16 text", "iconv -f UTF-16 -t UTF-8")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print a diagnosis of the files. Return FAILED when a file shows a failure."""
    diagnoses = [diagnosis for name in arguments.files for diagnosis in _diagnose_file(name)]
    if arguments.json:
        console.print_json(merge_diagnoses(diagnoses))
    else:
        console.print_lines(diagnosis_lines(diagnoses))
    unrecognised = [
        diagnosis.file
        for diagnosis in diagnoses
        if diagnosis.kind == TEXT and diagnosis.facts.get("state") == UNKNOWN
    ]
    console.print_stderr(
        *(
            f"{name}: not recognised as a server log or as the output of a known tool"
            for name in unrecognised
        )
    )
    return ExitCode.FAILED if any(diagnosis.failed for diagnosis in diagnoses) else ExitCode.DONE


def _diagnose_file(name: str) -> list[FileDiagnosis]:
    """Diagnose one file. A JSON document with several texts gives one diagnosis for each text."""
    reader, size = LogReader(), 0
    kept: list[bytes] = []
    for chunk in _file_chunks(name):
        if not size:
            _reject_compressed(name, chunk)
        reader.feed(chunk)
        size += len(chunk)
        kept = [*kept, chunk] if size <= _SHORT_BYTES else []
    text = b"".join(kept).decode("utf-8", "replace")
    file_diagnosis = diagnose_file(name, reader.finish(), text)
    parts = embedded_texts(text) if file_diagnosis.kind == TEXT or file_diagnosis.failed else {}
    return [_diagnose_part(f"{name}[{key}]", part) for key, part in parts.items()] or [
        file_diagnosis
    ]


def _diagnose_part(name: str, text: str) -> FileDiagnosis:
    reader = LogReader()
    reader.feed(text.encode("utf-8", "replace"))
    return diagnose_file(name, reader.finish(), text)


def _reject_compressed(name: str, first: bytes) -> None:
    """Raise ConfigError for a compressed or UTF-16 file, which would otherwise look like a log
    without a failure.
    """
    found = next((known for magic, known in _COMPRESSED.items() if first.startswith(magic)), None)
    start = first[:256]
    if (
        start[:2] in (b"\xff\xfe", b"\xfe\xff") and start.count(0) > len(start) // 4
    ):  # UTF-16, which PowerShell writes
        found = _UTF16
    if found:
        raise ConfigError(
            f"{name} is {found[0]}",
            f"{found[1]} {'FILE' if name == '-' else name} | fleetctl diagnose -",
        )


def _file_chunks(name: str) -> Iterator[bytes]:
    """Yield the bytes of a file or of standard input. Raises ConfigError if it cannot be read."""
    try:
        if name == "-":
            yield from _stream_chunks(sys.stdin.buffer)
            return
        with open(name, "rb", buffering=0) as stream:
            yield from _stream_chunks(stream)
    except OSError as error:
        raise ConfigError(
            f"cannot read {name}: {error.strerror}", "name a log file that exists and is readable"
        ) from error


def _stream_chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk
