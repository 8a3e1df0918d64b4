"""Collects the details of a failure from its lines, under the keys of `docs/json.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from fleet_knowledge.failure_classes import Failure
from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.server_log.diagnosis.accumulator import LogAccumulator
from fleet_knowledge.server_log.diagnosis.root_cause import Sighting

# Details that a log may name several times with different values
_REPEATABLE_DETAILS = ("port", "bus_id", "reporting_rank")
_OF_NCCL = ("nccl", "shm", "ib_", "p2p", "nvlink")


def failure_details(accumulator: LogAccumulator, root: Sighting, nccl: NcclFacts) -> dict[str, Any]:
    """Return the details of the root cause. They are the values that its lines name, and the values
    that its failure class adds.
    """
    sightings = [root, *accumulator.root_cause_finder.sightings_of_class(root.failure_class)]
    found = _named(sightings)
    ranks = sorted(
        {sighting.rank for sighting in sightings if sighting.rank},
        key=lambda label: (len(label), label),
    )
    if ranks:
        found["ranks_reporting"] = ranks
    if root.failure_class.startswith(_OF_NCCL) and nccl.failure:
        named = {
            "variable": nccl.failure.variable,
            "value": nccl.failure.value,
            "function": nccl.failure.function,
        }
        found |= {
            key: value
            for key, value in {**named, "nccl_result": nccl.failure.result}.items()
            if value
        }
    special = _DETAILS_BY_CLASS.get(root.failure_class)
    return {**found, **special(accumulator, root, found)} if special else found


def cause_text(failure: Failure, details: Mapping[str, Any]) -> str:
    """Return the explanation of a failure, with the port, time or rank that this log names."""
    if failure.name in ("port_in_use", "dist_port_in_use") and details.get("ports"):
        return f"{failure.cause} The port is {', '.join(map(str, details['ports']))}."
    if failure.name == "watchdog_timeout" and "timeout_s" in details:
        return failure.cause.replace("the watchdog's time", f"{details['timeout_s']} s")
    if failure.name == "weight_load_incomplete" and details.get("healthy_rank"):
        healthy_rank = details["healthy_rank"]
        return (
            f"Not the fault of {healthy_rank}: this rank finished loading and waited for ranks "
            f"that did not finish."
        )
    return failure.cause


def _named(sightings: Sequence[Sighting]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for sighting in sightings:
        for name, value in sighting.details.items():
            found.setdefault(name, _number(value))
    for name in _REPEATABLE_DETAILS:
        values = list(
            dict.fromkeys(
                _number(sighting.details[name])
                for sighting in sightings
                if name in sighting.details
            )
        )
        if values:
            found[f"{name}s"] = values
    if "repository" in found:
        found.setdefault("model", found.pop("repository"))
    return found


def _watchdog_details(
    accumulator: LogAccumulator, root: Sighting, found: Mapping[str, Any]
) -> dict[str, Any]:
    silent = sorted(
        {str(rank) for rank in accumulator.launch.ranks} - set(found.get("ranks_reporting", ()))
    )
    since = _stamp_before(root.stamp, found.get("timeout_s"))
    return {"ranks_silent": silent, **({"last_forward_stuck_since": since} if since else {})}


def _weight_load_details(
    accumulator: LogAccumulator, root: Sighting, found: Mapping[str, Any]
) -> dict[str, Any]:
    healthy = f"TP{found['healthy_rank']}" if "healthy_rank" in found else root.rank
    waiting = sorted(
        {str(rank) for rank in accumulator.launch.ranks - accumulator.launch.loaded_ranks}
        - {healthy, *found.get("ranks_reporting", ())}
    )
    return {
        "healthy_rank": healthy,
        "ranks_unfinished": waiting,
        "needs": "logs of all hosts of the job",
    }


def _kill_details(
    accumulator: LogAccumulator, root: Sighting, found: Mapping[str, Any]
) -> dict[str, Any]:
    return {"signal": "SIGKILL"} if found.get("exit_code") == -9 else {}


_DETAILS_BY_CLASS = {
    "watchdog_timeout": _watchdog_details,
    "weight_load_incomplete": _weight_load_details,
    "host_oom_kill": _kill_details,
    "killed": _kill_details,
}


def _stamp_before(stamp: str, by_s: Any) -> str:
    try:
        return str(datetime.fromisoformat(stamp.replace(",", ".")) - timedelta(seconds=int(by_s)))
    except (ValueError, TypeError, OverflowError):
        return ""


def _number(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(text) < 18 else text
