"""Writes the job file of a pasted launch, and records which line of the pasted file each key comes
from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_controller.importers.job_draft import JobDraft
from fleet_controller.importers.sources.launch_values import LaunchContainer
from fleet_controller.job_file.job_template import WORKLOADS_AND_MEASURE
from fleet_controller.yaml.findings import Finding

_PLAIN = re.compile(r"[A-Za-z_/~][A-Za-z0-9_./~@+-]*(?::[A-Za-z0-9_./~@+-]+)*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})
_IN_ENGINE = re.compile(
    r"NCCL_DEBUG.*|NCCL_SOCKET_IFNAME|NCCL_SOCKET_FAMILY|NCCL_IB_HCA|NCCL_CONF_FILE|NCCL_(?:TOPO|GRAPH)_DUMP_FILE"
)
_LISTED_CODES = ("dropped", "secret", "not_supported", "needs_value")
_MOST_LISTED = 24


@dataclass(slots=True)
class JobText:
    """The job file while it is written: its lines, and a map from keys of the job to lines of the
    pasted file.
    """

    lines: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def add(self, depth: int, text: str, key: str = "", place: int = 0) -> None:
        """Add one line. If it writes `key`, `place` is the line of the pasted file that the key
        comes from.
        """
        self.lines.append(f"{'  ' * depth}{text}")
        if key and place:
            self.places[key] = place

    @property
    def text(self) -> str:
        """The whole job file as text."""
        return "\n".join(self.lines).rstrip("\n") + "\n"


def write_job(draft: JobDraft, source: str, findings: Sequence[Finding]) -> JobText:
    """Return the commented job file. The comment at its head lists `findings` of the pasted
    file.
    """
    job = JobText()
    _head(job, draft, source, findings)
    _engine(job, draft)
    _factors(job, draft)
    job.lines.extend(WORKLOADS_AND_MEASURE.rstrip("\n").split("\n"))
    return job


def _head(job: JobText, draft: JobDraft, source: str, findings: Sequence[Finding]) -> None:
    job.add(
        0, f"# Made by `fleetctl init --from-command` of {comment_text(source.rpartition('/')[2])}."
    )
    job.add(0, "# The reference is docs/user/job-file.md.")
    listed = [finding for finding in findings if finding.code in _LISTED_CODES]
    if listed:
        job.add(0, "# Not carried over unchanged:")
    for finding in listed[:_MOST_LISTED]:
        job.add(0, f"#   line {finding.line}: {comment_text(finding.message)}")
    job.add(0, "apiVersion: benchfleet/v1")
    job.add(0, "kind: Job")
    model = draft.model_path.text if draft.model_path and draft.model_path.is_known else "pasted"
    job.add(0, f"name: {yaml_scalar(job_name(model))}")
    path = draft.model_path.text if draft.model_path else "$MODEL"
    line = draft.lines.get("model.path", 0)
    job.add(0, "")
    job.add(0, "model:", "model", line)
    job.add(
        1, f"path: {yaml_scalar(path)}{_fill_in_comment(draft, 'model.path')}", "model.path", line
    )


def _engine(job: JobText, draft: JobDraft) -> None:
    job.add(0, "")
    job.add(0, "engine:")
    job.add(1, "kind: sglang")
    if draft.container is not None:
        _container(job, draft, draft.container)
    elif draft.python is not None and ("/" in draft.python.text or not draft.python.is_known):
        job.add(
            1,
            f"python: {yaml_scalar(draft.python.text)}{_fill_in_comment(draft, 'engine.python')}",
            "engine.python",
            draft.python.line,
        )
    if draft.entry == "serve":
        job.add(1, "entry: serve", "engine.entry", draft.entry_line)
    if draft.hosts > 1 or "engine.nodes" in draft.unfilled:
        count = str(draft.hosts) if draft.hosts > 1 else '"${NODES}"'
        job.add(
            1,
            f"nodes: {count}{_fill_in_comment(draft, 'engine.nodes')}",
            "engine.nodes",
            draft.lines.get("engine.nodes", 0),
        )
    if draft.gpus is not None:
        job.add(1, f"gpus: {draft.gpus}", "engine.gpus", draft.lines.get("args.tp_size", 0))
    args = {name: value for name, value in draft.args.items() if not is_speculation(name, draft)}
    _section(
        job, 1, "args", {name: yaml_value(value) for name, value in args.items()}, draft, "engine"
    )
    _section(
        job,
        1,
        "env",
        {name: yaml_scalar(value.text) for name, value in draft.env.items() if not is_factor(name)},
        draft,
        "engine",
    )
    job.add(1, "ready_timeout: 30m")


def _container(job: JobText, draft: JobDraft, container: LaunchContainer) -> None:
    job.add(1, "container:", "engine.container", container.line)
    python = draft.python.text if draft.python and "/" in draft.python.text else ""
    shm_size = "" if container.ipc == "host" else memory_size(container.shm_size)
    keys = {
        "image": container.image.text or "$IMAGE",
        "runtime": container.runtime,
        "shm_size": shm_size,
        "python": python,
    }
    for key, value in keys.items():
        if value:
            job.add(
                2,
                f"{key}: {yaml_scalar(value)}{_fill_in_comment(draft, f'engine.container.{key}')}",
                f"engine.container.{key}",
                container.line,
            )
    if container.mounts:
        job.add(
            2, "mounts: # path inside: path on the host", "engine.container.mounts", container.line
        )
        for inside, host in container.mounts.items():
            job.add(
                3,
                f"{yaml_scalar(inside)}: {yaml_scalar(host.text)}",
                f"engine.container.mounts.{inside}",
                host.line,
            )


def _section(
    job: JobText, depth: int, name: str, values: Mapping[str, str], draft: JobDraft, above: str
) -> None:
    if not values:
        job.add(depth, f"{name}: {{}}")
        return
    job.add(depth, f"{name}:")
    for key, value in values.items():
        note = _fill_in_comment(draft, f"{name}.{key}")
        job.add(
            depth + 1,
            f"{yaml_scalar(key)}: {value}{note}",
            f"{above}.{name}.{key}",
            draft.lines.get(f"{name}.{key}", 0),
        )


def _fill_in_comment(draft: JobDraft, key: str) -> str:
    line = draft.unfilled.get(key)
    return "" if line is None else f" # fill in: line {line} of the pasted file has no value"


def is_speculation(name: str, draft: JobDraft) -> bool:
    """Return True if the argument belongs to the factor `speculation`."""
    return name.startswith("speculative_") and bool(draft.args.get("speculative_algorithm"))


def is_factor(name: str) -> bool:
    """Return True if the variable belongs to the factor `nccl`. Such a variable tunes NCCL: it
    neither controls logging nor names devices of the host.
    """
    return name.startswith(("NCCL_", "RCCL_")) and not _IN_ENGINE.fullmatch(name)


def _factors(job: JobText, draft: JobDraft) -> None:
    speculation = {
        name: yaml_value(value) for name, value in draft.args.items() if is_speculation(name, draft)
    }
    nccl = {name: yaml_scalar(value.text) for name, value in draft.env.items() if is_factor(name)}
    if not speculation and not nccl:
        return
    job.add(0, "")
    job.add(
        0,
        (
            "# Every combination of levels is a variant: this compares the pasted settings with "
            "the defaults."
        ),
    )
    job.add(0, "factors:")
    if speculation:
        job.add(1, "speculation:")
        job.add(2, "none: {}")
        job.add(2, "as-given:")
        _section(job, 3, "args", speculation, draft, "factors.speculation.as-given")
    if nccl:
        job.add(1, "nccl:")
        job.add(2, "default: {}")
        job.add(2, "as-given:")
        _section(job, 3, "env", nccl, draft, "factors.nccl.as-given")
    job.add(0, "")
    job.add(0, "# The variant that all others are compared with.")
    job.add(0, "baseline:")
    for name, level in (
        ("speculation", "none" if speculation else ""),
        ("nccl", "default" if nccl else ""),
    ):
        if level:
            job.add(1, f"{name}: {level}")


def memory_size(written: str) -> str:
    """Return a size in docker's spelling. The written size may have the spelling of docker, compose
    or Kubernetes (`10gb`, `1.5 GiB`, `16Gi`). Other text is returned as it is.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)i?b?", written.strip().lower())
    if not found:
        return written
    number, unit = float(found[1]), found[2]
    while unit == "t" or (not number.is_integer() and unit in ("g", "m", "k")):
        number, unit = number * 1024, {"t": "g", "g": "m", "m": "k", "k": "b"}[unit]
    return f"{int(number)}{unit}"


def job_name(model: str) -> str:
    """Return a job name made from a model's name: lower-case letters, digits and dashes."""
    base = (
        re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rpartition("/")[2].lower())
        .strip("-")[:40]
        .strip("-")
    )
    return base or "pasted"


def yaml_value(value: Any) -> str:
    """Return a typed value as YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(yaml_value(item) for item in value)}]"
    return yaml_scalar(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    shown = repr(value)
    return shown if "e" not in shown or "." in shown else shown.replace("e", ".0e")


def yaml_scalar(value: str) -> str:
    """Return a text as a YAML 1.2 scalar that reads back as the same text."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escaped(char) for char in quoted)


def _escaped(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def comment_text(words: str) -> str:
    """Return the text in a form that can follow `#`."""
    return "".join(char if char.isprintable() else " " for char in words)[:200]
