"""Owns how a physical line of a log is cut into NCCL's messages: prefix, level, text. Understands no message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# host:pid:thread [device] [file:line] NCCL LEVEL text; the host of a line glued to another one is cut below
_PREFIX = re.compile(
    r"(?:\[(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]]{0,12})\] )?"
    r"(?P<host>[A-Za-z0-9][\w.-]{0,252}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?:\[(?P<dev>-?\d{1,4})\] )?"
    r"(?:[\d.]{1,20} )?(?:(?P<file>\S{1,1000}:\d{1,6}) )?NCCL (?P<level>INFO|WARN|TRACE|ABORT|VERSION|CALL)(?: |$)"
)
_GLUED = re.compile(r"^(?:COMPLETE|START|available|peer|trees|rings|direct|IPC|CUMEM|read)(?=[A-Za-z0-9])")
_HOSTS = 64
LONGEST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Who wrote it is empty where the line has no prefix (NCCL's version line, PyTorch's errors)."""

    level: str
    text: str
    host: str = ""
    pid: int = 0
    dev: int | None = None
    file: str = ""
    time: str = ""

    @property
    def process(self) -> tuple[str, int, int | None]:
        """What tells one rank's lines from another's."""
        return self.host, self.pid, self.dev


class Cutter:
    """Cuts lines into messages; remembers hosts, so that it can tell a host from the end of a message that is glued to it."""

    def __init__(self) -> None:
        self._hosts: set[str] = set()

    def cut(self, line: str) -> Iterator[Message]:
        """Every message of `line`; what stands before the first prefix comes as one without a level."""
        found = list(_PREFIX.finditer(line))
        starts = [self._start(match) for match in found]
        before = line[: starts[0][0]] if found else line
        if before.strip():
            yield Message("", before.strip()[:LONGEST_TEXT])
        for index, match in enumerate(found):
            end = starts[index + 1][0] if index + 1 < len(found) else len(line)
            yield Message(
                match["level"],
                line[match.end() : end].strip()[:LONGEST_TEXT],
                starts[index][1],
                int(match["pid"]),
                int(match["dev"]) if match["dev"] is not None else None,
                _base(match["file"] or ""),
                match["time"] or "",
            )

    def _start(self, match: re.Match[str]) -> tuple[int, str]:
        """Where the message begins, and its host."""
        host: str = match["host"]
        if match["time"] is not None or host in self._hosts:
            return match.start(), self._seen(host)
        known = max((name for name in self._hosts if host.endswith(name)), key=len, default="")
        glued = _GLUED.match(host)
        cut = len(host) - len(known) if known else glued.end() if glued else 0
        follows_text = match.start("host") > 0 and match.string[match.start("host") - 1] == " "
        if cut and (glued or follows_text):
            return match.start("host") + cut, self._seen(host[cut:])
        return match.start(), self._seen(host)

    def _seen(self, host: str) -> str:
        if len(self._hosts) < _HOSTS:
            self._hosts.add(host)
        return host


def _base(path: str) -> str:
    """The last folder and the file: RCCL prints the path that it was built in."""
    return "/".join(path.split("/")[-2:]) if path.count("/") < 2 else path.rsplit("/", 1)[-1]
