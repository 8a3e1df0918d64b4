"""Parses the files that a workload may name (traces and prompts) from their bytes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, Final

from fleet_protos.attachment import Message, Prompts, Trace

TRACE_FORMS: Final = (
    "a .jsonl file with timestamp (ms), input_length, output_length and hash_ids, or a .csv file "
    "with time_s, prompt_tokens and output_tokens"
)
PROMPT_FORMS: Final = (
    "a .jsonl file of {messages: …} objects, a .json file of ShareGPT conversations, or a .txt "
    "file with one prompt on each line"
)
MOST_TOKENS: Final = 10_000_000

_MOONCAKE: Final = ("timestamp", "input_length", "output_length")
_CSV: Final = ("time_s", "prompt_tokens", "output_tokens")
_ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_TraceRow = tuple[float, int, int, tuple[int, ...]]  # time in ms, tokens in and out, blocks


class BadWorkloadFile(Exception):
    """A file cannot be used. The message says what is wrong and in which line. Line 0 means that no
    particular line is wrong.
    """

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}" if line else message)


def read_trace(content: bytes, name: str) -> Trace:
    """Return the requests of a trace, sorted by time. Times count from the first request. Lengths
    of 0 become 1. Raises BadWorkloadFile.
    """
    text = _text(content)
    if name.lower().endswith(".csv"):
        rows = list(_csv_rows(text))
    elif name.lower().endswith(".jsonl"):
        rows = list(_mooncake_rows(text))
    else:
        raise BadWorkloadFile(0, f"a trace must be {TRACE_FORMS}")
    if not rows:
        raise BadWorkloadFile(0, "the file holds no requests")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    blocks = tuple(row[3] for row in rows) if any(row[3] for row in rows) else ()
    return Trace(
        tuple(round(row[0] - first) for row in rows),
        tuple(row[1] for row in rows),
        tuple(row[2] for row in rows),
        blocks,
    )


def read_prompts(content: bytes, name: str) -> Prompts:
    """Return the prompts of a file, in the order of the file. Raises BadWorkloadFile."""
    readers = {".jsonl": _openai, ".json": _sharegpt, ".txt": _plain_text_prompts}
    ending = next((ending for ending in readers if name.lower().endswith(ending)), "")
    if not ending:
        raise BadWorkloadFile(0, f"a file of prompts must be {PROMPT_FORMS}")
    found = tuple(readers[ending](_text(content)))
    if not found:
        raise BadWorkloadFile(0, "the file holds no prompt of a user")
    return Prompts(found)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadWorkloadFile(
            content.count(b"\n", 0, error.start) + 1, "the file is not UTF-8 text"
        ) from error


def _objects(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of JSON. Raises BadWorkloadFile."""
    for line, written in enumerate(text.split("\n"), start=1):
        if not written.strip():
            continue
        try:
            found = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise BadWorkloadFile(line, f"not JSON: {error}") from error
        if not isinstance(found, dict):
            raise BadWorkloadFile(line, "not a JSON object")
        yield line, found


# Traces


def _mooncake_rows(text: str) -> Iterator[_TraceRow]:
    for line, found in _objects(text):
        missing = [key for key in _MOONCAKE if key not in found]
        if missing:
            raise BadWorkloadFile(line, f"`{missing[0]}` is missing")
        at_ms, *tokens = (_number(line, key, found[key]) for key in _MOONCAKE)
        ids = found.get("hash_ids", [])
        if not isinstance(ids, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) for one in ids
        ):
            raise BadWorkloadFile(line, "`hash_ids` is not a list of whole numbers")
        yield at_ms, *_tokens(line, tokens), tuple(ids)


def _csv_rows(text: str) -> Iterator[_TraceRow]:
    reader = csv.DictReader(StringIO(text, newline=""), skipinitialspace=True)
    try:
        missing = [key for key in _CSV if key not in (reader.fieldnames or ())]
        if missing:
            absent, needed = missing[0], ", ".join(_CSV)
            raise BadWorkloadFile(
                1, f"the first line has no column `{absent}`; the file needs the columns {needed}"
            )
        for row in reader:
            at_s, *tokens = (_number(reader.line_num, key, row[key]) for key in _CSV)
            yield 1000 * at_s, *_tokens(reader.line_num, tokens), ()
    except csv.Error as error:
        raise BadWorkloadFile(reader.line_num, f"not CSV: {error}") from error


def _number(line: int, key: str, written: object) -> float:
    try:
        number = (
            float(written)
            if isinstance(written, str | int | float) and not isinstance(written, bool)
            else -1.0
        )
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= 1e12:
        raise BadWorkloadFile(line, f"`{key}` is {str(written)[:40]!r}, not a number of 0 or more")
    return number


def _tokens(line: int, numbers: Sequence[float]) -> tuple[int, int]:
    if any(number != int(number) or number > MOST_TOKENS for number in numbers):
        raise BadWorkloadFile(
            line, f"a length is not a whole number of tokens up to {MOST_TOKENS:,}"
        )
    prompt, output = (max(1, int(number)) for number in numbers)
    return prompt, output


# Prompts


def _openai(text: str) -> Iterator[tuple[Message, ...]]:
    """Yield the messages of requests to a chat endpoint. Each line is one request. Messages after
    the user's last message are left out.
    """
    for line, found in _objects(text):
        messages = found.get("messages")
        if not isinstance(messages, list):
            raise BadWorkloadFile(line, "`messages` is missing or not a list")
        read = [_message(line, message) for message in messages]
        last = max((place for place, (role, _) in enumerate(read) if role == "user"), default=-1)
        if last < 0:
            raise BadWorkloadFile(line, "the request has no message of the user")
        yield tuple(read[: last + 1])


def _message(line: int, written: object) -> Message:
    if not isinstance(written, dict) or not isinstance(written.get("content"), str):
        raise BadWorkloadFile(line, "a message has no text in `content`")
    role = str(written.get("role"))
    if role not in ("system", "developer", "user", "assistant"):
        raise BadWorkloadFile(
            line, f"the role {role[:40]!r} is not one of system, developer, user and assistant"
        )
    return role, written["content"]


def _sharegpt(text: str) -> Iterator[tuple[Message, ...]]:
    """Yield the first question of each conversation. As in other benchmarks, a conversation is left
    out if it has no text or if the assistant begins it.
    """
    try:
        conversations = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadWorkloadFile(getattr(error, "lineno", 0), f"not JSON: {error}") from error
    if not isinstance(conversations, list):
        raise BadWorkloadFile(1, "a ShareGPT file must be a list of conversations")
    for number, found in enumerate(conversations, start=1):
        turns = (
            found.get("conversations", found.get("conversation"))
            if isinstance(found, dict)
            else None
        )
        if not isinstance(turns, list):
            raise BadWorkloadFile(0, f"conversation {number} has no list `conversations`")
        first = next(
            (
                turn
                for turn in turns
                if isinstance(turn, dict) and _ROLES.get(str(turn.get("from"))) != "system"
            ),
            {},
        )
        asked = first.get("value")
        if (
            _ROLES.get(str(first.get("from"))) == "user"
            and isinstance(asked, str)
            and asked.strip()
        ):
            yield (("user", asked),)


def _plain_text_prompts(text: str) -> Iterator[tuple[Message, ...]]:
    return ((("user", line.strip()),) for line in text.split("\n") if line.strip())
