"""Parses the decode and prefill lines of SGLang in all wordings of 0.2 - 0.5.23.

Sources: scheduler_metrics_mixin.py and scheduler.py of the releases 0.4.1, 0.4.3.post4,
0.4.6.post5, 0.4.9.post6, 0.5.3, 0.5.4.post3, 0.5.9, 0.5.13 and 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.server_log.parsing.log_lines import LogLine, Rank

DECODE, PREFILL = "decode", "prefill"
LARGEST = 1e15  # a larger number cannot be a real count
_HEAD = re.compile(r"\b(Decode|Prefill) batch(?: \[(\d+)\])?[.,:]? +(?=#)")
_GRAPH = re.compile(r"(\w+) graph")

# SGLang's name -> our name. Other keys are ignored: releases add and remove them.
COUNTS = {
    "#running-req": "running",
    "#queue-req": "queue",
    "#token": "token",
    "#full token": "full_token",
    "#swa token": "swa_token",
    "mamba num": "mamba_num",
    "#new-seq": "new_seq",
    "#new-token": "new_token",
    "#cached-token": "cached_token",
    "#pending-token": "pending_token",
    "largest-len": "largest_len",
    "#retracted-req": "retracted",
    # Disaggregated prefill and decode: names changed at 0.5.4 and 0.5.11
    "#unbootstrapped-req": "waiting_bootstrap",
    "#bootstrap-req": "waiting_bootstrap",
    "#prealloc-req": "waiting_bootstrap",
    "#transferring-req": "in_transfer",
    "#transfer-req": "in_transfer",
    "#inflight-req": "in_transfer",
}
SHARES = {
    "token usage": "token_usage",
    "full token usage": "full_token_usage",
    "swa token usage": "swa_token_usage",
    "mamba usage": "mamba_usage",
    "pre-allocated usage": "preallocated_usage",
}
RATES = {
    "accept len": "accept_len",
    "accept rate": "accept_rate",
    "gen throughput (token/s)": "gen_throughput",
    "input throughput (token/s)": "input_throughput",
}
USAGES = ("token_usage", "full_token_usage", "swa_token_usage", "mamba_usage")
# A truncated line may have lost digits of its last number, so that number is ignored unless its key
# can end a complete line. No decode line ends with its rate.
_MAY_END = frozenset({"#queue-req", "#cache_miss"})


@dataclass(frozen=True, slots=True)
class BatchLine:
    """Holds the fields of one decode or prefill line.

    `values` has only numbers that the line contains, under the names of `docs/json.md`. Rates are
    tokens per second.
    """

    kind: str
    values: Mapping[str, float]
    rank: Rank | None = None
    stamp: str = ""
    iteration: int | None = None
    graph: bool | None = None
    graph_kind: str = ""
    role: str = ""  # `prefill` or `decode` of a disaggregated pair

    def to_json(self) -> dict[str, Any]:
        """Return the line as `fleetctl diagnose --json` shows it.

        A field that nearly every line has is null if this line lacks it. Rarer fields are left out.
        """
        day, _, clock = self.stamp.rpartition(" ")
        common = {
            "type": self.kind,
            "rank": rank_json(self.rank),
            "date": day or None,
            "time": self.stamp if day else clock or None,
        }
        usual = dict.fromkeys(("running", "queue", "token_usage"))
        if self.kind == DECODE:
            usual |= dict.fromkeys(("token", "accept_len", "accept_rate", "gen_throughput"))
        graph = {
            "cuda_graph": self.graph if self.graph_kind in ("", "cuda") else None,
            "graph": self.graph,
            "graph_kind": self.graph_kind or None,
        }
        return {
            **common,
            **usual,
            **self.values,
            **graph,
            "iter": self.iteration,
            "role": self.role or None,
        }


def rank_json(rank: Rank | None) -> dict[str, int] | None:
    """Return the numbers in a rank's label, such as `{"dp": 0, "tp": 0}`. Return None without a
    rank.
    """
    return (
        {
            name: value
            for name, value in (("dp", rank.dp), ("pp", rank.pp), ("tp", rank.tp))
            if value >= 0
        }
        if rank
        else None
    )


def read_batch(line: LogLine) -> BatchLine | None:
    """Return the batch line in a message, or None without a batch line. Never raises."""
    found = _HEAD.search(line.text)
    if not found:
        return None
    kind = found[1].lower()
    values, graph, graph_kind = _fields(line.text[found.end() :], line.torn)
    if "running" not in values and "new_token" not in values:
        return None
    usages = [values[name] for name in USAGES if name in values]
    if usages:
        values["token_usage"] = max(usages)  # the fullest pool is the one that blocks new requests
    iteration = int(found[2]) if found[2] else None
    return BatchLine(
        kind, values, line.rank, line.stamp, iteration, graph, graph_kind, _role(kind, values)
    )


def _fields(tail: str, torn: bool) -> tuple[dict[str, float], bool | None, str]:
    values: dict[str, float] = {}
    graph, graph_kind = None, ""
    parts = [part.strip() for part in tail.split(",")]
    for index, part in enumerate(parts):
        key, _, text = part.partition(": ")
        name = COUNTS.get(key) or SHARES.get(key) or RATES.get(key)
        if name:
            if (
                index == len(parts) - 1
                and key not in _MAY_END
                and (torn or name == "gen_throughput")
            ):
                break
            value = _number(text, whole=key in COUNTS)
            if value is not None:
                values.setdefault(name, value)
        elif (found := _GRAPH.fullmatch(key)) and text in ("True", "False"):
            graph, graph_kind = text == "True", found[1]
    return values, graph, graph_kind


def _number(text: str, whole: bool) -> float | None:
    try:
        value = int(text) if whole else float(text.rstrip("%"))
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None  # nan fails this too


def _role(kind: str, values: Mapping[str, float]) -> str:
    if kind == DECODE:
        return DECODE if "preallocated_usage" in values or "waiting_bootstrap" in values else ""
    return PREFILL if "waiting_bootstrap" in values or "in_transfer" in values else ""
