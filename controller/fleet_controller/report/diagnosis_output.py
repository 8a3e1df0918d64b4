"""Merges the diagnoses of several files, and formats them as JSON or short text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.host import recognise_host_text as recognise_host
from fleet_knowledge.server_log.diagnosis.log_diagnosis import UNKNOWN, Diagnosis
from fleet_knowledge.sglang_metrics import recognise_metrics_text as recognise_figures

SERVER_LOG, NCCL_LOG, TEXT = "server_log", "nccl_log", "text"
_LOGS = (SERVER_LOG, NCCL_LOG, TEXT)
_WIDTH = 100
_NO_FAILURE_DISTANCE = 99
_OK_STATES = ("ok", "host")


@dataclass(frozen=True, slots=True)
class FileDiagnosis:
    """The diagnosis of one file.

    `facts` is the file's part of the JSON. `distance` says how far its failure is from a root cause
    (0 is nearest).
    """

    file: str
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    distance: int = _NO_FAILURE_DISTANCE

    @property
    def failed(self) -> bool:
        """Whether the file shows a failure, or a benchmark that did not succeed."""
        state = self.facts.get("state")
        bench_failed = self.kind.startswith("bench") and state not in (None, *_OK_STATES)
        return bool(self.facts.get("failure_class")) or state == "failed" or bench_failed


def diagnose_file(file: str, diagnosis: Diagnosis, text: str) -> FileDiagnosis:
    """Combine the log diagnosis of a file with what its text shows as the output of a tool.

    `text` is the content of the file, or empty when it is too long to be anything but a log.
    """
    kind = _log_kind(diagnosis)
    is_document = text[:64].lstrip()[:1] in ("{", "[") and not text.lstrip().startswith("[20")
    other = (
        (recognise_host(text) or recognise_figures(text))
        if text and (is_document or kind in (TEXT, NCCL_LOG))
        else None
    )
    if other is None:
        return FileDiagnosis(
            file,
            kind,
            diagnosis.to_json(),
            diagnosis.distance if diagnosis.failure_class else _NO_FAILURE_DISTANCE,
        )
    facts = {
        **Diagnosis().to_json(),
        **diagnosis.to_json(),
        **{key: value for key, value in other.items() if value is not None},
    }
    named = {
        "state": other.get("state") or UNKNOWN,
        "failure_class": other.get("failure_class"),
        "hint": other.get("hint") or None,
    }
    if named["failure_class"] != diagnosis.failure_class:  # `avoid` belongs to the class
        failure = FAILURES.get(str(named["failure_class"]))
        named["avoid"] = failure.avoid if failure else None
    facts |= named | {
        "cause_line": other.get("cause_line")
        or (facts["cause_line"] if other.get("failure_class") else None)
    }
    return FileDiagnosis(
        file, str(other["kind"]), facts, 0 if other.get("failure_class") else _NO_FAILURE_DISTANCE
    )


def embedded_texts(text: str) -> Mapping[str, str]:
    """Return the texts of a JSON document that is a list of texts, or an object with only texts.

    The keys are those of the object, or the positions in the list. The mapping is empty for any
    other text.
    """
    if not text.lstrip().startswith(("[", "{")):
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    pairs = (
        list(document.items())
        if isinstance(document, dict)
        else list(enumerate(document))
        if isinstance(document, list)
        else []
    )
    if not pairs or not all(isinstance(value, str) for _, value in pairs):
        return {}
    return {str(key): value for key, value in pairs}


def merge_diagnoses(diagnoses: Sequence[FileDiagnosis]) -> dict[str, Any]:
    """Merge all files into one JSON document: the root cause on top, each file under `files`."""
    root = _root_diagnosis(diagnoses)
    front = dict(root.facts)
    for diagnosis in diagnoses if root.kind in _LOGS else ():
        front |= _facts_from_host(front, diagnosis.facts) if diagnosis.kind not in _LOGS else {}
    bus_ids = [bus_id for known in diagnoses for bus_id in known.facts.get("bus_ids") or ()]
    front |= {"bus_ids": list(dict.fromkeys(bus_ids))} if bus_ids else {}
    details = dict(front.get("details") or {})
    for other in diagnoses:
        if (
            other is not root
            and front.get("failure_class")
            and other.facts.get("failure_class") == front["failure_class"]
        ):
            details |= {
                key: value
                for key, value in _kind_specific_facts(other).items()
                if key not in details
            }
    unfinished = [
        other.file
        for other in diagnoses
        if len(diagnoses) > 1 and other.facts.get("state") == "starting"
    ]
    if unfinished and front.get("failure_class"):
        details["unfinished_files"] = unfinished
    front |= {"details": details, "kind": root.kind, "file": root.file}
    files = (
        [{"file": known.file, "kind": known.kind, **known.facts} for known in diagnoses]
        if len(diagnoses) > 1
        else []
    )
    return {**front, "files": files or [{"file": root.file, "kind": root.kind}]}


def diagnosis_lines(diagnoses: Sequence[FileDiagnosis]) -> list[str]:
    """Return the diagnosis as a few lines of text."""
    document = merge_diagnoses(diagnoses)
    lines = [_headline(document, several=len(diagnoses) > 1)]
    if document.get("cause_line"):
        lines.append(f"  {document['cause_line']}")
    lines += [
        f"{name}: {document[key]}"
        for name, key in (("what to do", "hint"), ("what not to do", "avoid"))
        if document.get(key)
    ]
    lines += (
        _launch_lines(document)
        + _rate_lines(document.get("decode") or {})
        + _nccl_line(document.get("nccl") or {})
        + _other_kind_lines(document)
    )
    for warning in document.get("warnings") or ():
        times = f" ({warning['count']} times)" if warning.get("count", 1) > 1 else ""
        lines.append(
            f"{warning.get('severity', 'warning')} {warning['code']}: {warning['message']}{times}"
        )
        lines += (
            [f"    {warning['hint']}"]
            if warning.get("hint") and warning.get("severity") != "info"
            else []
        )
    if len(diagnoses) > 1:
        lines += [
            "files:",
            *(f"  {diagnosis.file}: {_file_summary(diagnosis)}" for diagnosis in diagnoses),
        ]
    return lines


def _log_kind(diagnosis: Diagnosis) -> str:
    if diagnosis.launches or diagnosis.phase or diagnosis.decode or diagnosis.server:
        return SERVER_LOG
    if diagnosis.nccl:
        return NCCL_LOG
    return TEXT


def _root_diagnosis(diagnoses: Sequence[FileDiagnosis]) -> FileDiagnosis:
    """Return the diagnosis with the failure nearest to a root cause. Among equally near failures,
    return the first.

    Without a failure, return the first server log, preferably one with decode lines.
    """
    failed = [diagnosis for diagnosis in diagnoses if diagnosis.failed]
    if failed:
        return min(
            failed,
            key=lambda known: (
                known.distance,
                str(known.facts.get("at") or "~"),
                diagnoses.index(known),
            ),
        )
    return max(
        diagnoses,
        key=lambda known: (
            known.kind == SERVER_LOG,
            bool(known.facts.get("decode")),
            -diagnoses.index(known),
        ),
    )


def _facts_from_host(front: Mapping[str, Any], host_facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the output of a host tool adds to a server's failure: which processes hold GPU
    memory, the state of the fabric, or that a GPU is degraded.
    """
    failure = front.get("failure_class")
    warned = not failure and any(
        warning.get("code") == "gpu_busy_leftover" for warning in front.get("warnings") or ()
    )
    if (
        host_facts.get("kind") == "gpu_processes"
        and host_facts.get("pids")
        and (failure == "gpu_busy_leftover" or warned)
    ):
        return {
            name: host_facts[name] for name in ("pids", "holders", "hint") if name in host_facts
        }
    if failure == "fabric_manager_down" and host_facts.get("fabric"):
        return {name: host_facts[name] for name in ("fabric", "related") if name in host_facts} | {
            "hint": host_facts.get("hint") or front.get("hint")
        }
    if host_facts.get("host_state") == "degraded":
        return {"host_state": "degraded", "hint": host_facts.get("hint") or front.get("hint")}
    return {}


def _kind_specific_facts(diagnosis: FileDiagnosis) -> dict[str, Any]:
    """Return the facts of a file that only files of this kind have."""
    common = Diagnosis().to_json()
    return {
        key: value
        for key, value in diagnosis.facts.items()
        if key not in common and key != "kind" and value not in (None, [], {})
    }


def _headline(document: Mapping[str, Any], several: bool) -> str:
    where = f"{document['file']}: " if several else ""
    if not document.get("failure_class"):
        return f"{where}{document.get('state') or UNKNOWN}" + (
            f" ({document['kind']})" if document["kind"] != SERVER_LOG else ""
        )
    place = [str(document[key]) for key in ("rank", "phase") if document.get(key)]
    retry = {True: ", a retry may help", False: ", a retry does not help", None: ""}[
        document.get("retryable")
    ]
    return (
        f"{where}failed: {document['failure_class']}"
        + (f" ({', '.join(place)})" if place else "")
        + retry
    )


def _launch_lines(document: Mapping[str, Any]) -> list[str]:
    lines = []
    if phases := document.get("phases_s"):
        total = (
            f", ready after {document['ready_s']:g} s"
            if document.get("ready_s") is not None
            else ""
        )
        lines.append(
            "phases: "
            + ", ".join(f"{name} {seconds:g} s" for name, seconds in phases.items())
            + total
        )
    if progress := document.get("progress"):
        phase, done, total = document.get("phase"), progress["done"], progress["total"]
        lines.append(f"progress: {phase} {done} of {total}")
    return lines


def _rate_lines(decode: Mapping[str, Any]) -> list[str]:
    if not decode.get("lines") and not decode.get("prefill_lines"):
        return []
    figures = [
        _figure(decode, "total_gen_throughput", "{:.1f} tok/s"),
        _figure(decode, "running_mean", "{:.1f} requests running"),
        _figure(decode, "accept_len_mean", "accept length {:.2f}"),
        _figure(decode, "cuda_graph_share", "{:.0%} with graphs"),
        _figure(decode, "cache_hit_rate", "{:.1%} of prompt tokens cached"),
    ]
    ranks = (
        f" over {len(decode['dp_ranks'])} DP ranks" if len(decode.get("dp_ranks", ())) > 1 else ""
    )
    dropped = (
        f", {decode['dropped_lines']} left out after idle time"
        if decode.get("dropped_lines")
        else ""
    )
    counts = (
        f"({decode['lines']} decode and {decode['prefill_lines']} prefill lines{ranks}{dropped})"
    )
    return ["decode: " + ", ".join(filter(None, figures)) + " " + counts]


def _figure(decode: Mapping[str, Any], key: str, form: str) -> str:
    return form.format(decode[key]) if decode.get(key) is not None else ""


def _nccl_line(nccl: Mapping[str, Any]) -> list[str]:
    if not nccl:
        return []
    settings = ", ".join(
        f"{name}={'/'.join(values)}" for name, values in list(nccl.get("settings", {}).items())[:8]
    )
    transport = ", ".join(
        f"{name} {count}" for name, count in nccl.get("transport", {}).items() if count
    )
    parts = [
        f"{nccl.get('library') or 'NCCL'} {nccl.get('version') or ''}".strip(),
        settings,
        transport and f"transport {transport}",
    ]
    return ["nccl: " + "; ".join(part for part in parts if part)]


def _other_kind_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the plain values of a file that is not a log, each on its own line."""
    if document["kind"] in _LOGS:
        return []
    common = Diagnosis().to_json()
    plain = {
        key: value
        for key, value in document.items()
        if key not in common
        and key not in ("file", "files", "kind", "details")
        and isinstance(value, str | int | float)
        and value != ""
    }
    return [f"{key}: {value}" for key, value in plain.items()]


def _file_summary(diagnosis: FileDiagnosis) -> str:
    state = diagnosis.facts.get("failure_class") or diagnosis.facts.get("state") or UNKNOWN
    phase = diagnosis.facts.get("phase")
    return (
        f"{state}"
        + (f" in {phase}" if phase else "")
        + (f" ({diagnosis.kind})" if diagnosis.kind != SERVER_LOG else "")
    )
