"""Owns how a diagnosis of a server's log gains from what the host told beside it; reads neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet_knowledge.host import fabric, leftovers


def join(diagnosis: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The diagnosis (JSON of a log) with pids, hint and host facts of `recognise`'s answers where these explain its failure."""
    joined = dict(diagnosis)
    for told in hosts:
        joined |= _explained(joined, told)
    return joined


def _explained(diagnosis: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    failure = diagnosis.get("failure_class")
    if told.get("kind") == "gpu_processes" and told.get("pids") and (failure == leftovers.FAILURE_CLASS or _warned(diagnosis)):
        return {name: told[name] for name in ("pids", "holders", "hint")} | {"failure_class": leftovers.FAILURE_CLASS}
    if failure == fabric.FAILURE_CLASS and told.get("fabric"):
        return {"fabric": told["fabric"], "hint": fabric.hint(), "related": dict(fabric.RELATED)}
    if told.get("host_state") == "degraded":
        return {"host_state": "degraded", "bus_ids": told.get("bus_ids", []), "hint": told.get("hint") or diagnosis.get("hint")}
    return {}


def _warned(diagnosis: Mapping[str, Any]) -> bool:
    """The check was off and SGLang only warned: without another failure, that is what the processes explain."""
    codes = [warning.get("code") for warning in diagnosis.get("warnings", ()) if isinstance(warning, Mapping)]
    return not diagnosis.get("failure_class") and leftovers.FAILURE_CLASS in codes
