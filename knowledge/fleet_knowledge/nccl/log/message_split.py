"""Splits a physical line of a log into NCCL's messages. A message has a prefix, NCCL's log level
and a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A prefix is read backwards from ` NCCL LEVEL`: [date time] host:pid:thread [device] [file:line]
_LEVEL = re.compile(r" NCCL (INFO|WARN|TRACE|ABORT|VERSION|CALL)(?= |$)")
_PROCESS = re.compile(r"([A-Za-z0-9][\w.-]{0,300}):(\d{1,10}):(\d{1,10})$")
_DEVICE = re.compile(r"\[(-?\d{1,4})\]$")
_FILE = re.compile(r"\S+:\d{1,7}$")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d[^\]]{0,12})\]$")
_GLUED = re.compile(
    r"(?:COMPLETE|START|available|peer|trees|rings|direct|IPC|CUMEM|read)(?=[A-Za-z0-9])"
)
_MAX_HOSTS = 64
_MAX_PREFIX_CHARS = 1400
_MAX_CACHED_PREFIX_CHARS = 200
_MAX_CACHED_PREFIXES = 4096
MAX_TEXT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class NcclMessage:
    """One message of NCCL. `level` is NCCL's log level.

    Host, process and device are empty for a line without a prefix (NCCL's version line, PyTorch's
    errors).
    """

    level: str
    text: str
    host: str = ""
    pid: int = 0
    dev: int | None = None
    file: str = ""
    time: str = ""

    @property
    def process(self) -> tuple[str, int, int | None]:
        """Return what identifies a rank's lines: host, process id, CUDA device."""
        return self.host, self.pid, self.dev


@dataclass(slots=True)
class _Prefix:
    start: int
    end: int
    level: str
    host: str
    pid: int
    dev: int | None
    file: str
    time: str = ""


class MessageSplitter:
    """Splits lines into messages. It remembers host names to recognise a host name that directly
    follows the end of another message.
    """

    def __init__(self) -> None:
        self._hosts: set[str] = set()
        self._prefix_cache: dict[str, NcclMessage] = {}  # by the prefix of an INFO line

    def split(self, line: str) -> Iterator[NcclMessage]:
        """Yield every message of `line`. Text before the first prefix becomes a message with an
        empty log level.
        """
        at = line.find(" NCCL ")
        known = self._prefix_cache.get(line[:at]) if 0 < at < _MAX_CACHED_PREFIX_CHARS else None
        if known and line.startswith(known.level, at + 6) and " NCCL " not in line[at + 6 :]:
            text = line[at + 7 + len(known.level) :].strip()[:MAX_TEXT_CHARS]
            yield NcclMessage(known.level, text, known.host, known.pid, known.dev, known.file)
            return
        prefixes = list(self._prefixes(line))
        before = (line[: prefixes[0].start] if prefixes else line).strip()
        if before:
            yield NcclMessage("", before[:MAX_TEXT_CHARS])
        for index, prefix in enumerate(prefixes):
            end = prefixes[index + 1].start if index + 1 < len(prefixes) else len(line)
            text = line[prefix.end : end].strip()[:MAX_TEXT_CHARS]
            message = NcclMessage(
                prefix.level,
                text,
                prefix.host,
                prefix.pid,
                prefix.dev,
                _base_name(prefix.file),
                prefix.time,
            )
            if (
                prefix.start == 0
                and not prefix.time
                and prefix.level == "INFO"
                and len(self._prefix_cache) < _MAX_CACHED_PREFIXES
            ):
                self._prefix_cache[line[: prefix.end - 10]] = message
            yield message

    def _prefixes(self, line: str) -> Iterator[_Prefix]:
        floor = 0
        for level in _LEVEL.finditer(line):
            prefix = self._read_prefix(line, max(floor, level.start() - _MAX_PREFIX_CHARS), level)
            if prefix is not None:
                yield prefix
                floor = level.end()

    def _read_prefix(self, line: str, floor: int, level: re.Match[str]) -> _Prefix | None:
        """Return the prefix that ends at `level`; None if another line tore it apart."""
        words = line[floor : level.start()].rsplit(" ", 6)
        starts = [
            level.start() - sum(map(len, words[index:])) - (len(words) - 1 - index)
            for index in range(len(words))
        ]
        at, file, dev = len(words) - 1, "", None
        if not _PROCESS.search(words[at]) and _FILE.fullmatch(words[at]):
            at, file = at - 1, words[at]
        if at > 0 and words[at].replace(".", "", 1).isdigit():
            at -= 1  # a TRACE line's milliseconds
        if at > 0 and (device := _DEVICE.fullmatch(words[at])):
            at, dev = at - 1, int(device[1])
        who = _PROCESS.search(words[at]) if at >= 0 else None
        if who is None:
            return None
        stamp = _STAMP.search(" ".join(words[at - 2 : at])) if at > 1 and who.start() == 0 else None
        host = who[1] if stamp else self._host_in(who[1], glued=who.start() == 0)
        start = starts[at] + who.end(1) - len(host)
        if stamp:
            start = starts[at] - 1 - len(stamp[0])
        self._remember_host(host)
        return _Prefix(
            start,
            level.end(),
            level[1],
            host,
            int(who[2]),
            dev,
            file,
            f"{stamp[1]} {stamp[2]}" if stamp else "",
        )

    def _host_in(self, name: str, *, glued: bool) -> str:
        """Return the host at the end of `name`. The end of another message may stand before it."""
        if name in self._hosts:
            return name
        tail = _GLUED.match(name) if glued else None
        known = max((host for host in self._hosts if name.endswith(host)), key=len, default="")
        if tail:
            return known if known and len(known) >= len(name) - tail.end() else name[tail.end() :]
        return name

    def _remember_host(self, host: str) -> None:
        if len(self._hosts) < _MAX_HOSTS:
            self._hosts.add(host)


def _base_name(path: str) -> str:
    """Return the path of a source file as NCCL prints it, without the build folders of RCCL."""
    return path if path.count("/") < 2 else path.rsplit("/", 1)[-1]
