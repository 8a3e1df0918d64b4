"""Splits one physical line of a log into messages. Removes the prefixes that log collectors added,
and reads time stamp and rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# Prefixes that log collectors add: container or pod name, Ray process, time of journald, syslog,
# Kubernetes or Slurm
_WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<source>[A-Za-z0-9][\w.-]*) *\| ?",  # docker compose
        r"\[pod/(?P<source>[^\]]+)\] ",  # kubectl logs --prefix
        r"\((?:[\w:.]+ )?pid=(?P<source>\d+(?:, ip=[\da-fA-F.:]+)?)\) ?",  # Ray
        rf"(?P<time>{_ISO}) (?:stdout|stderr) [FP] ",  # CRI
        # docker --timestamps, journald short-iso
        rf"(?P<time>{_ISO}) (?:(?P<source>[\w.-]+) [\w./@-]+(?:\[\d+\])?: )?",
        # syslog
        (
            r"[A-Z][a-z]{2} [ \d]\d (?P<time>\d\d:\d\d:\d\d)(?:\.\d+)? (?P<source>[\w.-]+) "
            r"[\w./@-]+(?:\[\d+\])?: "
        ),
        r"\[(?:rank|default)(?P<source>\d+)\]: ?",  # torchrun
        r" ?(?P<source>\d{1,3}): (?=\[|\S+:\d+:\d+ \[)",  # srun --label
        r"<\d{1,3}>",
    )
)
_JSON_KEYS = ("log", "line", "message", "msg")
_MAX_WRAPPERS = 4
_CENTURIES = ("19", "20")
_RANKS = r"(?: [A-Z][A-Z_]*\d+)*"
_STAMP = re.compile(
    rf"\[(?:(?P<date>\d{{4}}-\d\d-\d\d)[ T])?(?P<time>\d\d:\d\d:\d\d)"
    rf"(?:[.,]\d{{1,9}})?(?P<rank>{_RANKS})(?: [\w.-]+)?\] ?"
)
_GPU_STAMP = re.compile(r"\[gpu=(\d+)\] ?")  # up to 0.2
# Where a second message begins in the same physical line
_SECOND = re.compile(
    rf"(?<!^)(?=\[(?:\d{{4}}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?{_RANKS}\] )"
    r"|(?<=[^\s\w.\]-])(?=[A-Za-z][\w.-]*:\d+:\d+ \[\d+\] (?:[\w/.-]+:\d+ )?NCCL )"
    r"|(?<=COMPLETE)(?=\S+:\d+:\d+ \[\d+\] NCCL )|(?<=START)(?=\S+:\d+:\d+ \[\d+\] NCCL )"
)
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Identifies the worker that wrote a line. A number is -1 if the worker's label does not name
    it.
    """

    dp: int = -1
    pp: int = -1
    tp: int = -1

    @classmethod
    def parse(cls, label: str) -> Rank | None:
        """Return the rank in a label such as `DP0 TP0 EP0`, `PP1 TP3` or `TP0`. Return None if the
        label names no rank.
        """
        found = {
            name[-2:]: int(number)
            for name, number in re.findall(r"([A-Z][A-Z_]*)(\d{1,6})\b", label)
            if name in _RANK_NAMES
        }
        return cls(found.get("DP", -1), found.get("PP", -1), found.get("TP", -1)) if found else None

    def __str__(self) -> str:
        return " ".join(
            f"{name}{value}"
            for name, value in (("DP", self.dp), ("PP", self.pp), ("TP", self.tp))
            if value >= 0
        )


_RANK_NAMES = ("DP", "PP", "TP", "ATTN_DP", "ATTN_TP")


@dataclass(frozen=True, slots=True)
class LogLine:
    """Holds one message of a log.

    `stamp` is the time that the message contains. If it contains none, `stamp` is the time that the
    log collector added. `at_s` is the same time in seconds, or None. `source` is the container, pod
    or process that the collector named.
    """

    text: str
    stamp: str = ""
    at_s: float | None = None
    rank: Rank | None = None
    source: str = ""
    torn: bool = False  # another message begins in the middle of this one


def read_log_lines(raw: bytes) -> Iterator[LogLine]:
    """Yield the messages of a physical line, in order. Undecodable bytes become replacement
    characters.
    """
    text, source, time = unwrap(raw.decode("utf-8", "replace"))
    may_hold_two = text.find(":", 0, 400) >= 0 and (text.find("[", 1) > 0)
    pieces = [piece for piece in _SECOND.split(text) if piece] if may_hold_two else [text]
    pieces = pieces or [""]
    for index, piece in enumerate(pieces):
        yield _read(piece, source, time, torn=index < len(pieces) - 1)


def unwrap(text: str) -> tuple[str, str, str]:
    """Return (text that the process wrote, container or process name, time that the collector
    added).

    Name and time are empty if no collector added them.
    """
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.replace("\x00", "").rstrip()
    if (
        text[:1] == "[" and text[1:3] in _CENTURIES
    ):  # the server's own stamp: no collector added a prefix
        return text, "", ""
    if text.startswith('{"'):
        text = _unwrap_json(text)
    source = time = ""
    for _ in range(_MAX_WRAPPERS):
        found = next((match for wrapper in _WRAPPERS if (match := wrapper.match(text))), None)
        if not found:
            break
        named = found.groupdict()
        source, time = named.get("source") or source, named.get("time") or time
        text = text[found.end() :]
    return text, source, time


def clock_seconds(day: str, clock: str) -> float | None:
    """Return a day and a time, such as `2025-06-03` and `10:02:24.5`, as seconds for comparing
    times.

    Without a day, the seconds count from midnight. Return None if the text is not a time.
    """
    try:
        hours, minutes, rest = clock.replace(",", ".").split(":")
        since_midnight = int(hours) * 3600 + int(minutes) * 60 + float(rest)
        return since_midnight + (date.fromisoformat(day).toordinal() * _DAY_S if day else 0.0)
    except ValueError:
        return None


def elapsed_s(begin_s: float | None, end_s: float | None) -> float | None:
    """Return the seconds between two times.

    Return None if a time is missing, or if the end is before the beginning. If the times have no
    day, midnight may lie between them.
    """
    if begin_s is None or end_s is None:
        return None
    took_s = end_s - begin_s
    if took_s < 0 and max(begin_s, end_s) < _DAY_S:
        took_s += _DAY_S
    return took_s if took_s >= 0 else None


def _read(piece: str, source: str, time: str, torn: bool) -> LogLine:
    found = _STAMP.search(piece, 0, 200)
    if found:
        day, clock = found["date"] or "", found[0].strip("[] ").removesuffix(found["rank"])
        clock = clock.removeprefix(day).strip(" T").split(" ")[0]
        text = (
            piece[found.end() :]
            if found.start() == 0
            else piece[: found.start()] + piece[found.end() :]
        )
        return LogLine(
            text.strip(),
            f"{day} {clock}".strip(),
            clock_seconds(day, clock),
            Rank.parse(found["rank"]),
            source,
            torn,
        )
    if found := _GPU_STAMP.match(piece):
        return LogLine(piece[found.end() :], rank=Rank(tp=int(found[1])), source=source, torn=torn)
    day, _, clock = time.rpartition("T")
    clock = re.split(r"[Z+-]", clock)[0]
    return LogLine(
        piece.rstrip(), f"{day} {clock}".strip(), clock_seconds(day, clock[:15]), None, source, torn
    )


def _unwrap_json(text: str) -> str:
    """Return the message inside a JSON line.

    Docker and Fluent Bit call the field `log`, Loki calls it `line`. Other collectors call it
    `message` or `msg`.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    found = (
        next((fields[key] for key in _JSON_KEYS if isinstance(fields.get(key), str)), None)
        if isinstance(fields, dict)
        else None
    )
    return text if found is None else str(found).rstrip()
