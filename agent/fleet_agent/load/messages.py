"""Defines the messages between agent and load process, one JSON object per line. Imports neither
Ray nor pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fleet_agent.load.results.load_reply import LoadReply, ParquetFile
from fleet_protos.trial_types import Lengths, Part, Search, SharedPrefix, Slo, Stage, Workload

WARM: Final = "warm"
RUN: Final = "run"
CANCEL: Final = "cancel"


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Holds what the load process needs for one run or warm-up against one server. A `time_scale`
    above 1 means that the server is simulated and runs that many times faster than its model.
    """

    url: str
    workload: Workload
    seed: int = 1
    run_index: int = 0
    requests: int = 0  # of a warm-up; 0: the load process chooses
    sglang: bool = True  # the server understands SGLang's own fields
    # empty the prefix cache of an SGLang server before a run; False for a server of other users
    flush: bool = True
    model: str = ""
    token: str = field(default="", repr=False)  # the server's API key; empty: none
    time_scale: float = 1.0
    speculation: bool = False  # the variant requests it
    draft_steps: int = 0  # from the server's resolved arguments; 0: unknown
    draft_tokens: int = 0
    parquet: str = ""  # path for the raw data; empty: it is not kept
    # texts for the raw file: job, trial, attempt, variant
    metadata: Mapping[str, str] = field(default_factory=dict)
    salt_scope: str = ""  # the job on an external server, which outlives jobs; empty elsewhere
    # packed files that the workload names, by ref
    files: Mapping[str, str] = field(default_factory=dict, repr=False)


def request_line(number: int, operation: str, request: LoadRequest | None = None) -> bytes:
    """Return the line that orders `operation`. The answer carries the same `number`."""
    content = asdict(request) if request is not None else {}
    return _encode_line({"id": number, "op": operation} | content)


def read_request(content: Mapping[str, Any]) -> LoadRequest:
    """Parse the request in a decoded line. Raises TypeError or ValueError if `request_line` did not
    write the line.
    """
    values = {name: value for name, value in content.items() if name not in ("id", "op")}
    return LoadRequest(workload=_workload(values.pop("workload")), **values)


def _workload(content: Mapping[str, Any]) -> Workload:
    values = dict(content)
    values["stages"] = tuple(Stage(**stage) for stage in values.pop("stages", ()))
    values["mix"] = tuple(Part(**_with_nested_values(part)) for part in values.pop("mix", ()))
    values["search"] = Search(**values.pop("search", {}))
    return Workload(slo=Slo(**values.pop("slo", {})), **_with_nested_values(values))


def _with_nested_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the nested values that a workload and a part of a mixture both have."""
    lengths = {name: Lengths(**content.get(name, {})) for name in ("output", "input")}
    return {**content, **lengths, "prefix": SharedPrefix(**content.get("prefix", {}))}


def reply_line(number: int, reply: LoadReply) -> bytes:
    """Return the line that reports a finished run or warm-up."""
    return _encode_line({"id": number, "ok": asdict(reply)})


def error_line(number: int, message: str, *, fatal: bool = False) -> bytes:
    """Return the line that reports that a run or warm-up failed. With `fatal` the load process also
    ends.
    """
    return _encode_line({"id": number, "error": message, "fatal": fatal})


def ready_line(ray_started_s: float) -> bytes:
    """Return the first line, which reports that Ray has started."""
    return _encode_line({"ready": True, "ray_started_s": round(ray_started_s, 3)})


def read_reply(content: Mapping[str, Any]) -> LoadReply:
    """Parse the reply of a decoded line."""
    values = dict(content)
    return LoadReply(parquet=ParquetFile(**values.pop("parquet")), **values)


def _encode_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
