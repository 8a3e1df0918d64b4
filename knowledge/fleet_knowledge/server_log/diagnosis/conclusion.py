"""Draws the conclusion of a diagnosis: state, root cause, rank and hint."""

from __future__ import annotations

from dataclasses import replace

from fleet_knowledge.failure_classes import FAILURES, Failure
from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.server_log.diagnosis.accumulator import LogAccumulator
from fleet_knowledge.server_log.diagnosis.decode_section import (
    build_decode_section,
    decode_warnings,
)
from fleet_knowledge.server_log.diagnosis.failure_details import cause_text, failure_details
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
    LogWarning,
)
from fleet_knowledge.server_log.diagnosis.root_cause import Sighting
from fleet_knowledge.server_log.parsing.log_lines import Rank, elapsed_s
from fleet_knowledge.server_log.parsing.redaction import redact
from fleet_knowledge.server_log.symptoms.symptom import AFTER, ECHO

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
"""The phase in which a failure happens, if the log does not show how far the launch was."""
_EAGLE = ("EAGLE", "EAGLE3", "NEXTN")
_MEMORY_OR_CRASH = (
    "cuda_oom",
    "oom_weights",
    "oom_kv_cache",
    "oom_cuda_graph",
    "scheduler_crashed",
)
_BUSY_HINT = (
    "A health check got no token in time, but batches continue: keep the server. Stop polling "
    "/health with short timeouts under load (each check also injects a request of one token), or "
    "raise SGLANG_HEALTH_CHECK_TIMEOUT."
)

_SILENT_S = 60.0


def _busy_hint(accumulator: LogAccumulator) -> str:
    silent_s = accumulator.silent_s
    if silent_s < _SILENT_S or accumulator.batches > accumulator.silent_batches:
        return _BUSY_HINT
    return (
        f"When the last health check failed, the log had shown no token and no batch line for "
        f"{silent_s:.0f} s. Unless a long prefill or the compilation of a kernel is running, a "
        "collective hangs. Read the last line of every rank, NCCL's output and dmesg (Xid). "
        "SGLang's own watchdog ends such a server after --watchdog-timeout. Do not only raise the "
        "timeout of the health check."
    )


def conclude_diagnosis(accumulator: LogAccumulator) -> Diagnosis:
    """Return the diagnosis of everything that the accumulator was given so far."""
    accumulator.settle()
    launch, nccl = accumulator.launch, accumulator.nccl_facts()
    decode = build_decode_section(accumulator.rates, accumulator.samples(), accumulator.excluded)
    speculative = bool(accumulator.server.get("speculative_algorithm"))
    root = _find_root(accumulator, nccl)
    state = FAILED if root else _state_without_failure(accumulator)
    earlier = accumulator.earlier_failures
    result = Diagnosis(
        state=state,
        phase=launch.phase,
        hint=_busy_hint(accumulator) if state == BUSY else "",
        details={"earlier_failures": earlier} if earlier else {},
        phases_s=launch.phases_s(),
        ready_at=launch.ready_at,
        ready_s=elapsed_s(launch.began_s, launch.ready_at_s),
        progress=launch.progress,
        weight_shards=launch.shards,
        launches=accumulator.launches,
        server=accumulator.server,
        warnings=(
            *accumulator.warnings(),
            *decode_warnings(decode, speculative),
            *(LogWarning(note.code, note.message, note.hint) for note in nccl.notes),
        ),
        decode=decode,
        nccl=nccl.to_json() if nccl.library or nccl.failure else {},
        versions=accumulator.versions,
    )
    return _with_failure(result, accumulator, root, nccl) if root else result


def _with_failure(
    result: Diagnosis, accumulator: LogAccumulator, root: Sighting, nccl: NcclFacts
) -> Diagnosis:
    failure = FAILURES[root.failure_class]
    details = {**failure_details(accumulator, root, nccl), **result.details}
    named_by_nccl = (
        nccl.failure is not None
        and nccl.failure.failure_class == failure.name
        and bool(nccl.failure.hint)
    )
    hint = (
        nccl.failure.hint
        if nccl.failure and named_by_nccl
        else f"{cause_text(failure, details)} {root.cure or failure.cure}"
    )
    return replace(
        result,
        failure_class=failure.name,
        cause_line=root.cause_line,
        rank="" if failure.name == "weight_load_incomplete" else _failed_rank(accumulator, root),
        phase=_failure_phase(root, failure, result.phase),
        hint=hint,
        avoid=failure.avoid,
        stamp=root.stamp,
        distance=root.distance,
        details=details,
    )


def _find_root(accumulator: LogAccumulator, nccl: NcclFacts) -> Sighting | None:
    launch = accumulator.launch
    root = accumulator.root_cause_finder.root_cause(
        bool(launch.ready_at) or launch.phase == SERVING
    )
    if root is None:
        alone = not launch.phase and not accumulator.rates.ranks
        return (
            _root_from_nccl(None, nccl) if alone else None
        )  # an NCCL WARN alone does not end a server
    if root.distance >= ECHO or (root.distance == AFTER and root.failure_class.startswith("nccl")):
        root = _root_from_nccl(root, nccl) or root
    if root.failure_class in _MEMORY_OR_CRASH and _uses_itself_as_draft(accumulator):
        root = replace(root, failure_class="spec_draft_missing")
    return root


def _root_from_nccl(root: Sighting | None, nccl: NcclFacts) -> Sighting | None:
    """Return the root cause as NCCL's own lines explain it. Return None if they explain no
    failure.
    """
    failure = nccl.failure
    if failure is None or failure.failure_class not in FAILURES:
        return None
    ours = root or Sighting(failure.failure_class, AFTER, 0, "")
    return replace(
        ours,
        failure_class=failure.failure_class,
        distance=min(ours.distance, AFTER),
        cause_line=redact(failure.cause_line),
    )


def _state_without_failure(accumulator: LogAccumulator) -> str:
    launch = accumulator.launch
    if accumulator.stopped and launch.phase:
        return STOPPED
    if (
        accumulator.unhealthy
        and (accumulator.rates.ranks or launch.ready_at)
        and launch.phase in ("", SERVING, READY)
    ):
        return BUSY
    if launch.phase in (READY, SERVING) or launch.ready_at:
        return IS_SERVING if launch.phase == SERVING else IS_READY
    return STARTING if launch.phase else UNKNOWN


def _uses_itself_as_draft(accumulator: LogAccumulator) -> bool:
    """Return whether the target model was also loaded as its own draft model, because no draft was
    given.

    Such a server fails in many ways, all of which belong to the failure class `spec_draft_missing`.
    """
    loaded: dict[str, list[str]] = {}
    for rank, architecture in accumulator.architectures:
        loaded.setdefault(rank, []).append(architecture)
    twice = any(len(types) > 1 and len(set(types)) == 1 for types in loaded.values())
    named = [f"--speculative-algorithm {name}" in accumulator.command for name in _EAGLE]
    has_draft = (
        accumulator.server.get("speculative_draft_model_path")
        or "--speculative-draft" in accumulator.command
    )
    return (
        twice
        and (accumulator.server.get("speculative_algorithm") in _EAGLE or any(named))
        and not has_draft
    )


def _failed_rank(accumulator: LogAccumulator, root: Sighting) -> str:
    tp_size, number = accumulator.server.get("tp_size"), root.details.get("rank", "")
    if number.isdecimal() and isinstance(tp_size, int) and 0 < tp_size <= int(number):
        return str(Rank(pp=int(number) // tp_size, tp=int(number) % tp_size))
    if root.rank:
        return root.rank
    same = [
        sighting.rank
        for sighting in accumulator.root_cause_finder.sightings_of_class(root.failure_class)
        if sighting.rank
    ]
    crashes = [
        sighting
        for sighting in accumulator.root_cause_finder.sightings_of_class("scheduler_crashed")
        if sighting.rank
    ]
    crashed = [sighting.rank for sighting in crashes if sighting.order <= root.order]
    only = (
        list({sighting.rank for sighting in crashes})
        if len({sighting.rank for sighting in crashes}) == 1
        else []
    )
    return (same or crashed[-1:] or only or [""])[0]


def _failure_phase(root: Sighting, failure: Failure, phase: str) -> str:
    if failure.name == "port_in_use":
        return HTTP_BIND
    if phase == SERVING and root.phase == READY:
        return SERVING
    return root.phase or _PHASE_OF.get(failure.name, "") or phase
