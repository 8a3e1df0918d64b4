"""Parses what an SGLang server or its router reports outside of /metrics: rates, accept length,
version.

The endpoints are /server_info and /model_info from 0.5.6 on, /get_server_info and /get_model_info
in all versions. Without --enable-metrics, /metrics answers 404 and these endpoints are the only
source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.sglang_metrics.accept_length import (
    AcceptLength,
    accept_length_from_average,
    finite_number,
)

SERVER_INFO_PATHS = ("/server_info", "/get_server_info")
MODEL_INFO_PATHS = ("/model_info", "/get_model_info")
ENABLE_METRICS_HINT = "add --enable-metrics to every job: otherwise /metrics answers with 404"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Holds what one server reported. The rate is in tokens per second. A value is None if the
    server did not report it.
    """

    version: str = ""
    gen_throughput: float | None = None
    accept_length: AcceptLength = field(default_factory=AcceptLength)
    source: str = ""
    role: str = ""  # `decode` behind a router that splits prefill and decode
    arguments: Mapping[str, Any] | None = None


def read_json_object(text: str) -> Mapping[str, Any] | None:
    """Return the JSON object in a text, or None for any other text. Never raises."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def parse_server_info(info: Mapping[str, Any], source: str = "") -> ServerInfo:
    """Return what a server reports in an answer.

    An answer `{"prefill": […], "decode": […]}` is a router's. Then the first decode server counts.
    """
    behind = _first_object(info.get("decode"))
    if behind is not None:
        found = parse_server_info(behind, source)
        return ServerInfo(
            found.version,
            found.gen_throughput,
            found.accept_length,
            source,
            "decode",
            found.arguments,
        )
    states = tuple(_states(info))
    rates = [
        rate
        for state in states
        if (rate := finite_number(state.get("last_gen_throughput"))) is not None
    ]
    return ServerInfo(
        str(info.get("version") or ""),
        sum(rates) if rates else None,
        _mean_accept_length(states),
        source,
        arguments=server_arguments_in(info),
    )


def first_answer(answers: Mapping[str, Any]) -> ServerInfo | None:
    """Return what the newest endpoint reports that answered with an object. Return None if none
    did.

    The keys of `answers` are paths, with or without `GET `.
    """
    by_path = {path.split()[-1]: answer for path, answer in answers.items() if path.strip()}
    for path in SERVER_INFO_PATHS:
        answer = by_path.get(path)
        if isinstance(answer, str):
            answer = read_json_object(answer)
        if isinstance(answer, Mapping):
            return parse_server_info(answer, path)
    return None


def server_arguments_in(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the server arguments in an answer. Some versions nest them under `server_args`."""
    nested = info.get("server_args")
    return {**nested, **info} if isinstance(nested, Mapping) else info


def is_server_info(info: Mapping[str, Any]) -> bool:
    """Return whether an object is an answer of /server_info, from a server or a router."""
    if (
        _first_object(info.get("decode")) is not None
        or _first_object(info.get("prefill")) is not None
    ):
        return True
    has_state = "internal_states" in info
    return has_state or (
        "model_path" in info
        and any(name in info for name in ("tp_size", "mem_fraction_static", "server_args"))
    )


def _states(info: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the state of each data-parallel rank.

    Some versions report one object instead of a list. The oldest versions have the fields at the
    top level of the answer.
    """
    states = info.get("internal_states", info)
    if isinstance(states, Mapping):
        yield states
    elif isinstance(states, Sequence) and not isinstance(states, str):
        yield from (state for state in states if isinstance(state, Mapping))


def _mean_accept_length(states: Sequence[Mapping[str, Any]]) -> AcceptLength:
    """Return the mean accept length over the ranks that have averaged anything.

    The mean is not weighted, because the answer does not say how many steps each average covers.
    """
    averages = [
        accept_length_from_average(finite_number(state.get("avg_spec_accept_length")))
        for state in states
    ]
    lengths = [one.length for one in averages if one.length is not None]
    return (
        AcceptLength(sum(lengths) / len(lengths), None, "server average")
        if lengths
        else accept_length_from_average(None)
    )


def _first_object(value: object) -> Mapping[str, Any] | None:
    return (
        next((one for one in value if isinstance(one, Mapping)), None)
        if isinstance(value, list)
        else None
    )
