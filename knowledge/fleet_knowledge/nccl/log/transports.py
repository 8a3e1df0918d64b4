"""Collects the transports between pairs of ranks, and the devices that they use, from NCCL's log.
The number of pairs is limited.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : (?P<source>\d+)\[\w+\] -> (?P<target>\d+)\[\w+\]"
    r"(?: \[(?P<side>send|receive)\])? via (?P<via>[^\n]{1,200})"
)
_IB_DEVICE = re.compile(r"\[\d+\](?:\{\[\d+\] )?([A-Za-z][\w.+-]*):\d+/")
_INTERFACE = re.compile(r"\[\d+\]([^\s:\]\[]+):")
_BOOTSTRAP = re.compile(r"Bootstrap\s*: Using ([^\s:]+):")
_BRIDGE = re.compile(r"(?:docker|br-|veth|virbr|cni|flannel|cali|podman|lxc|lxdbr|nerdctl|kube)")
_MAX_PAIRS = 4096
_MAX_NAMES = 256
KINDS = ("P2P", "SHM", "NET")


class Transports:
    """Counts channels by transport. A network channel also logs its sending side, but counts only
    once.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.paths: Counter[str] = Counter()
        self._pairs: Counter[tuple[int, int, str]] = Counter()
        self.ib_devices: dict[str, None] = {}
        self.interfaces: dict[str, None] = {}
        self.bootstrap = ""
        self.gdr: bool | None = None

    def add_line(self, text: str) -> bool:
        """Record the transport in `text`. Return False if the text contains none."""
        if "] -> " in text and " via " in text:
            return self._add_channel(text)
        if "Using " not in text:
            return False
        if text.startswith("NET/IB"):
            _remember_names(self.ib_devices, _IB_DEVICE.findall(text))
        elif text.startswith("NET/Socket"):
            _remember_names(self.interfaces, _INTERFACE.findall(text))
        elif (found := _BOOTSTRAP.search(text)) is not None:
            self.bootstrap = self.bootstrap or found[1]
        else:
            return False
        return True

    def _add_channel(self, text: str) -> bool:
        found = _CHANNEL.search(text)
        if not found:
            return False
        path = _path_name(found["via"].strip())
        if path.startswith("NET/") and path.endswith("/GDR"):
            self.gdr = True
        if found["side"] == "receive":
            return True
        kind = path.partition("/")[0]
        self.kinds[kind if kind in self.kinds or len(self.kinds) < 32 else "other"] += 1
        if path in self.paths or len(self.paths) < _MAX_NAMES:
            self.paths[path] += 1
        pair = int(found["source"][:9]), int(found["target"][:9]), path
        if pair in self._pairs or len(self._pairs) < _MAX_PAIRS:
            self._pairs[pair] += 1
        return True

    def pairs(self) -> tuple[tuple[int, int, str, int], ...]:
        """Return (sending rank, receiving rank, path, channels), in order of ranks."""
        return tuple((*pair, count) for pair, count in sorted(self._pairs.items()))


def container_bridges(interfaces: Mapping[str, None]) -> tuple[str, ...]:
    """Return the interfaces that belong to containers and reach no other host."""
    return tuple(name for name in interfaces if _BRIDGE.match(name))


def _path_name(via: str) -> str:
    """Return the path without device numbers and read marks.

    The result is for example `P2P/CUMEM`, `P2P/IPC`, `SHM/direct`, `NET/IB`, `NET/IB/GDR` or
    `NET/PLUG-IN`.
    """
    parts = via.split("/")
    kind = parts[0].strip()
    if kind == "NET":
        gdr = any(part.startswith("GDR") for part in parts[2:])
        return "/".join(
            (kind, parts[1].strip() if len(parts) > 1 else "", *(("GDR",) if gdr else ()))
        )
    return "/".join((kind, *(part.strip() for part in parts[1:2])))


def _remember_names(known: dict[str, None], names: list[str]) -> None:
    for name in names:
        if len(known) < _MAX_NAMES:
            known.setdefault(name)
