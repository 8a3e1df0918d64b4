"""Packs a trace or a file of prompts into a text that travels with a job. The text is compact and
of limited size. Equal content gives equal text.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, Final

from fleet_protos.v1.trial_values import AttachedFile

MAX_PACKED_CHARS: Final = 384 << 10  # all files of a job together; each of its trials carries them
MAX_UNPACKED_BYTES: Final = 16 << 20  # one file
MAX_FILES: Final = 16  # per job

BUILTIN_PROMPTS: Final = ("chat", "code", "reasoning", "summarise", "long_context")
Message = tuple[str, str]  # role, content


@dataclass(frozen=True, slots=True)
class Trace:
    """Holds recorded requests, in the order of their arrival.

    `at_ms` is the time since the first arrival. `blocks` holds, for each prompt, one id for each
    piece of BLOCK_TOKENS tokens. Pieces with equal ids are equal. `blocks` is empty for a trace
    without ids. Otherwise it is as long as the other columns.
    """

    at_ms: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...] = ()

    def truncated(self, requests: int, end_ms: float) -> Trace:
        """Return the first `requests` requests that arrive before `end_ms`."""
        count = sum(at < end_ms for at in self.at_ms[:requests])
        return Trace(
            self.at_ms[:count],
            self.prompt_tokens[:count],
            self.output_tokens[:count],
            self.blocks[:count],
        )


@dataclass(frozen=True, slots=True)
class Prompts:
    """Holds prompts to draw from. Each conversation holds the messages of one request. Its last
    message is from the user.
    """

    conversations: tuple[tuple[Message, ...], ...]


def file_ref(file: AttachedFile) -> str:
    """Return the name by which workloads refer to the file. Files with equal content have equal
    names.
    """
    return sha256(file.content.encode()).hexdigest()[:16]


def pack(content: Trace | Prompts) -> str:
    """Return the content as one ASCII word. Raises ValueError if the content is larger than
    `unpack` accepts.
    """
    plain = (
        _trace_json(content) if isinstance(content, Trace) else {"prompts": content.conversations}
    )
    data = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > MAX_UNPACKED_BYTES:
        size_mib, limit_mib = len(data) >> 20, MAX_UNPACKED_BYTES >> 20
        raise ValueError(f"the content has {size_mib} MiB, more than the limit of {limit_mib} MiB")
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(packed: str) -> Trace | Prompts:
    """Return the content of a word that `pack` made. Raises ValueError if `pack` did not make this
    text, or if its content is too large.
    """
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED_BYTES)
        if not unpacking.eof:
            limit_mib = MAX_UNPACKED_BYTES >> 20
            raise ValueError(f"the content is truncated, or has more than {limit_mib} MiB")
        plain = json.loads(data)
        return (
            _trace_from_json(plain)
            if "at" in plain
            else Prompts(tuple(tuple(map(_message_from_json, one)) for one in plain["prompts"]))
        )
    except (binascii.Error, zlib.error, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the attached file cannot be read: {error}") from error


def _message_from_json(plain: Any) -> Message:
    role, content = plain
    if not isinstance(role, str) or not isinstance(content, str):
        raise TypeError("a message must consist of a role and a text")
    return role, content


def _trace_json(trace: Trace) -> Mapping[str, Any]:
    """Return the trace as JSON. Times and block ids become differences, because small numbers
    compress well.
    """
    plain = {"at": _differences(trace.at_ms), "in": trace.prompt_tokens, "out": trace.output_tokens}
    return (
        {**plain, "blocks": [_differences(ids) for ids in trace.blocks]} if trace.blocks else plain
    )


def _trace_from_json(plain: Mapping[str, Any]) -> Trace:
    blocks = tuple(tuple(accumulate(steps)) for steps in plain.get("blocks", ()))
    trace = Trace(tuple(accumulate(plain["at"])), tuple(plain["in"]), tuple(plain["out"]), blocks)
    columns = (trace.prompt_tokens, trace.output_tokens, *((trace.blocks,) if trace.blocks else ()))
    numbers = (*trace.at_ms, *trace.prompt_tokens, *trace.output_tokens)
    if any(len(column) != len(trace.at_ms) for column in columns) or not all(
        isinstance(number, int) for number in numbers
    ):
        raise ValueError(
            "the columns of the trace differ in length, or hold something other than integers"
        )
    return trace


def _differences(numbers: tuple[int, ...]) -> list[int]:
    return [*numbers[:1], *(later - earlier for earlier, later in pairwise(numbers))]
