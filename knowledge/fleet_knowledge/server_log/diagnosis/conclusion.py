"""Owns the last step of a diagnosis: state, root, rank and hint out of all that a log told. Reads no line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleet_knowledge.failure_classes import FAILURES, Failure
from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.server_log.diagnosis.failure_details import details_of, told_cause
from fleet_knowledge.server_log.diagnosis.launch_phases import (
    CAPTURE_GRAPH,
    HTTP_BIND,
    INIT_DIST,
    KV_ALLOC,
    LOAD_WEIGHT,
    READY,
    SERVING,
    START,
)
from fleet_knowledge.server_log.diagnosis.log_diagnosis import (
    BUSY,
    FAILED,
    IS_READY,
    IS_SERVING,
    STARTING,
    STOPPED,
    UNKNOWN,
    Diagnosis,
    Warned,
)
from fleet_knowledge.server_log.diagnosis.root_cause import Sighting
from fleet_knowledge.server_log.parsing.log_lines import Rank, elapsed
from fleet_knowledge.server_log.parsing.redaction import shown
from fleet_knowledge.server_log.symptoms.symptom import AFTER, ECHO

if TYPE_CHECKING:
    from fleet_knowledge.server_log.diagnosis.accumulator import Story

_PHASE_OF = {
    "port_in_use": HTTP_BIND,
    "oom_kv_cache": KV_ALLOC,
    "oom_cuda_graph": CAPTURE_GRAPH,
    "oom_weights": LOAD_WEIGHT,
    "weight_load_incomplete": LOAD_WEIGHT,
    "dist_port_in_use": INIT_DIST,
    "dist_init_timeout": INIT_DIST,
    "gpu_busy_leftover": INIT_DIST,
    "argument_error": START,
    "spec_args_invalid": START,
    "hf_auth": START,
    "model_not_found": START,
    "watchdog_timeout": SERVING,
}
"""Where a failure happens when the log does not say how far the launch had come."""
_EAGLE = ("EAGLE", "EAGLE3", "NEXTN")
_MEMORY_OR_CRASH = ("cuda_oom", "oom_weights", "oom_kv_cache", "oom_cuda_graph", "scheduler_crashed")
_BUSY_HINT = (
    "A health check got no token in time, but batches go on: keep the server, stop polling /health with short timeouts under load (it"
    " also injects a request of one token), or raise SGLANG_HEALTH_CHECK_TIMEOUT."
)

_SILENT_S = 60.0


def _busy_hint(story: Story) -> str:
    if story.silent_s < _SILENT_S or story.batches > story.silent_batches:
        return _BUSY_HINT
    return (
        f"No token and no batch line for {story.silent_s:.0f} s when the last health check failed: unless a long prefill or a kernel's"
        " compilation is under way, a collective hangs. Look at every rank's last line, at NCCL's output and at dmesg (Xid); SGLang's own"
        " watchdog ends such a server after --watchdog-timeout. Do not raise the health check's timeout only."
    )


def diagnosis(story: Story, warned: Sequence[Warned], decode: Mapping[str, Any], nccl: NcclFacts) -> Diagnosis:
    """The value that all ends in."""
    launch = story.launch
    root = _root(story, nccl)
    state = FAILED if root else _alive(story)
    told = Diagnosis(
        state=state,
        phase=launch.phase,
        hint=_busy_hint(story) if state == BUSY else "",
        details={"earlier_failures": story.earlier} if story.earlier else {},
        phases_s=launch.phases_s(),
        ready_at=launch.ready_at,
        ready_s=elapsed(launch.began_s, launch.ready_at_s),
        progress=launch.progress,
        weight_shards=launch.shards,
        launches=story.launches,
        server=story.server,
        warnings=tuple(warned),
        decode=decode,
        nccl=nccl.to_json() if nccl.library or nccl.failure else {},
        versions=story.versions,
    )
    return _failed(told, story, root, nccl) if root else told


def _failed(told: Diagnosis, story: Story, root: Sighting, nccl: NcclFacts) -> Diagnosis:
    failure = FAILURES[root.failure_class]
    details = {**details_of(story, root, nccl), **told.details}
    named_by_nccl = nccl.failure is not None and nccl.failure.failure_class == failure.name and bool(nccl.failure.hint)
    hint = nccl.failure.hint if nccl.failure and named_by_nccl else f"{told_cause(failure, details)} {root.cure or failure.cure}"
    return replace(
        told,
        failure_class=failure.name,
        cause_line=root.cause_line,
        rank="" if failure.name == "weight_load_incomplete" else _rank(story, root),
        phase=_phase(root, failure, told.phase),
        hint=hint,
        avoid=failure.avoid,
        stamp=root.stamp,
        distance=root.distance,
        details=details,
    )


def _root(story: Story, nccl: NcclFacts) -> Sighting | None:
    launch = story.launch
    root = story.roots.root(bool(launch.ready_at) or launch.phase == SERVING)
    if root is None:
        alone = not launch.phase and not story.rates.ranks
        return _of_nccl(None, nccl) if alone else None  # a WARN of NCCL's alone ends no server
    if root.distance >= ECHO or (root.distance == AFTER and root.failure_class.startswith("nccl")):
        root = _of_nccl(root, nccl) or root
    if root.failure_class in _MEMORY_OR_CRASH and _drafts_itself(story):
        root = replace(root, failure_class="spec_draft_missing")
    return root


def _of_nccl(root: Sighting | None, nccl: NcclFacts) -> Sighting | None:
    """NCCL's own lines may say more exactly why a server ended."""
    failure = nccl.failure
    if failure is None or failure.failure_class not in FAILURES:
        return None
    ours = root or Sighting(failure.failure_class, AFTER, 0, "")
    return replace(ours, failure_class=failure.failure_class, distance=min(ours.distance, AFTER), cause_line=shown(failure.cause_line))


def _alive(story: Story) -> str:
    launch = story.launch
    if story.stopped and launch.phase:
        return STOPPED
    if story.unhealthy and (story.rates.ranks or launch.ready_at) and launch.phase in ("", SERVING, READY):
        return BUSY
    if launch.phase in (READY, SERVING) or launch.ready_at:
        return IS_SERVING if launch.phase == SERVING else IS_READY
    return STARTING if launch.phase else UNKNOWN


def _drafts_itself(story: Story) -> bool:
    """A target that was loaded twice as its own draft fails in many ways; all of them are one class."""
    loaded: dict[str, list[str]] = {}
    for rank, architecture in story.architectures:
        loaded.setdefault(rank, []).append(architecture)
    twice = any(len(types) > 1 and len(set(types)) == 1 for types in loaded.values())
    named = [f"--speculative-algorithm {name}" in story.command for name in _EAGLE]
    has_draft = story.server.get("speculative_draft_model_path") or "--speculative-draft" in story.command
    return twice and (story.server.get("speculative_algorithm") in _EAGLE or any(named)) and not has_draft


def _rank(story: Story, root: Sighting) -> str:
    tp_size, number = story.server.get("tp_size"), root.details.get("rank", "")
    if number.isdecimal() and isinstance(tp_size, int) and 0 < tp_size <= int(number):
        return str(Rank(pp=int(number) // tp_size, tp=int(number) % tp_size))
    if root.rank:
        return root.rank
    same = [sighting.rank for sighting in story.roots.of_class(root.failure_class) if sighting.rank]
    crashes = [sighting for sighting in story.roots.of_class("scheduler_crashed") if sighting.rank]
    crashed = [sighting.rank for sighting in crashes if sighting.order <= root.order]
    only = list({sighting.rank for sighting in crashes}) if len({sighting.rank for sighting in crashes}) == 1 else []
    return (same or crashed[-1:] or only or [""])[0]


def _phase(root: Sighting, failure: Failure, phase: str) -> str:
    if failure.name == "port_in_use":
        return HTTP_BIND
    if phase == SERVING and root.phase == READY:
        return SERVING
    return root.phase or _PHASE_OF.get(failure.name, "") or phase
