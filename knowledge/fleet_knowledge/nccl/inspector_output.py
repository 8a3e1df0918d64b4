"""Reads what NCCL's inspector plug-in writes: Prometheus text, or one JSON object per line.

Formats: plugins/profiler/inspector of NCCL 2.30 (inspector_prom.cc, inspector_json.cc),
ext-profiler/inspector of 2.28 and 2.29.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SAMPLE = re.compile(
    r"^(?P<name>nccl_[a-z0-9_]+)\{(?P<labels>.*)\} (?P<value>[-+0-9.eEnaifNI]+)(?: \d+)?$"
)
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_BANDWIDTH, _TIME = "nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"
_MAX_ROWS = 4096


@dataclass(frozen=True, slots=True)
class InspectorRow:
    """The figures of one collective of one size on one GPU.

    `algo_proto` is the plug-in's name for algorithm and protocol (`Ring_ll`). It is empty for a
    JSON dump without them. `message_size` is bytes as text, or a range such as `4-5GB`.
    `busbw_gb_s` is in GB/s and `exec_time_us` in microseconds. Each is None if the dump lacks it.
    """

    collective: str
    message_size: str
    algo_proto: str
    gpu: str
    nranks: int
    busbw_gb_s: float | None = None
    exec_time_us: float | None = None
    count: int = 1

    @property
    def algo(self) -> str:
        """Return the algorithm in capitals, as in NCCL's log; empty if unknown."""
        return _algo_or_proto(self.algo_proto, 0)

    @property
    def proto(self) -> str:
        """Return the protocol in capitals; empty if unknown."""
        return _algo_or_proto(self.algo_proto, 1)


def _algo_or_proto(algo_proto: str, index: int) -> str:
    algo, _, proto = algo_proto.rpartition("_")
    word = (algo, proto)[index].upper()
    return "" if word == "UNKNOWN" else word


def read_inspector(text: str) -> tuple[InspectorRow, ...]:
    """Return the rows of a dump in either form; other lines are skipped."""
    rows: dict[tuple[str, ...], InspectorRow] = {}
    for one in _read_rows(text):
        key = one.collective, one.message_size, one.algo_proto, one.gpu, str(one.nranks)
        known = rows.get(key)
        if known is not None:
            rows[key] = _merge_rows(known, one)
        elif len(rows) < _MAX_ROWS:
            rows[key] = one
    return tuple(rows.values())


def is_inspector_dump(text: str) -> bool:
    """Return whether the start of `text` has the form of a dump."""
    return any(True for _ in _read_rows(text[:65_536]))


def algo_proto_by_collective(rows: tuple[InspectorRow, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return the distinct pairs of algorithm and protocol of each collective, in order of
    appearance.
    """
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.algo_proto:
            found.setdefault(row.collective, {}).setdefault(row.algo_proto)
    return {collective: tuple(choices) for collective, choices in found.items()}


def _read_rows(text: str) -> Iterator[InspectorRow]:
    for line in text.splitlines():
        if line.startswith("nccl_"):
            yield from _read_prometheus_line(line)
        elif line.startswith("{"):
            yield from _read_json_line(line)


def _read_prometheus_line(line: str) -> Iterator[InspectorRow]:
    found = _SAMPLE.match(line)
    if not found or found["name"] not in (_BANDWIDTH, _TIME):
        return
    labels = {
        name: value.replace('\\"', '"').replace("\\\\", "\\")
        for name, value in _LABEL.findall(found["labels"])
    }
    value = _number(found["value"])
    if "collective" in labels:
        yield InspectorRow(
            labels["collective"],
            labels.get("message_size", ""),
            labels.get("algo_proto", ""),
            labels.get("gpu", ""),
            _to_int(labels.get("nranks", "")),
            value if found["name"] == _BANDWIDTH else None,
            value if found["name"] == _TIME else None,
        )


def _read_json_line(line: str) -> Iterator[InspectorRow]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return  # the last line of a dump that is still being written is incomplete
    work, header = (_mapping(content, key) for key in ("coll_perf", "header"))
    if isinstance(work.get("coll"), str):
        algo = (
            f"{work['coll_algo']}_{work['coll_proto']}"
            if "coll_algo" in work and "coll_proto" in work
            else ""
        )
        yield InspectorRow(
            work["coll"],
            str(work.get("coll_msg_size_bytes", "")),
            algo,
            f"rank {header.get('rank', '?')}",
            _to_int(str(header.get("n_ranks", ""))),
            _number(work.get("coll_busbw_gbs")),
            _number(work.get("coll_exec_time_us")),
        )


def _mapping(content: Any, key: str) -> Mapping[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, dict) else {}


def _merge_rows(known: InspectorRow, newer: InspectorRow) -> InspectorRow:
    """Merge two rows of the same collective and keep the newest figures.

    A second bandwidth counts as another call; any other figure belongs to the same sample.
    """
    again = known.busbw_gb_s is not None and newer.busbw_gb_s is not None
    return InspectorRow(
        known.collective,
        known.message_size,
        known.algo_proto,
        known.gpu,
        known.nranks,
        newer.busbw_gb_s if newer.busbw_gb_s is not None else known.busbw_gb_s,
        newer.exec_time_us if newer.exec_time_us is not None else known.exec_time_us,
        known.count + again,
    )


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _to_int(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
