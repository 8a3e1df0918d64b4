"""Owns the text of the job file that is made of a pasted launch, and which line of the pasted file each of its keys comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_controller.importers.job_draft import Carried
from fleet_controller.importers.sources.launch_values import Box
from fleet_controller.job_file.job_template import WORKLOADS_AND_MEASURE
from fleet_controller.yaml.findings import Finding

_PLAIN = re.compile(r"[A-Za-z_/~][A-Za-z0-9_./~@+-]*(?::[A-Za-z0-9_./~@+-]+)*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})
_IN_ENGINE = re.compile(r"NCCL_DEBUG.*|NCCL_SOCKET_IFNAME|NCCL_SOCKET_FAMILY|NCCL_IB_HCA|NCCL_CONF_FILE|NCCL_(?:TOPO|GRAPH)_DUMP_FILE")
_TOLD_IN_FILE = ("dropped", "secret", "not_supported", "needs_value")
_MOST_TOLD = 24


@dataclass(slots=True)
class JobText:
    """The file while it is written: its lines, and key of the job → line of the pasted file."""

    lines: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def add(self, depth: int, text: str, key: str = "", place: int = 0) -> None:
        """One line; `key` and `place` say where it came from."""
        self.lines.append(f"{'  ' * depth}{text}")
        if key and place:
            self.places[key] = place

    @property
    def text(self) -> str:
        """The whole file."""
        return "\n".join(self.lines).rstrip("\n") + "\n"


def write_job(carried: Carried, source: str, told: Sequence[Finding]) -> JobText:
    """The commented job file. `told`: what was found in the pasted file, for the comment at its head."""
    made = JobText()
    _head(made, carried, source, told)
    _engine(made, carried)
    _factors(made, carried)
    made.lines.extend(WORKLOADS_AND_MEASURE.rstrip("\n").split("\n"))
    return made


def _head(made: JobText, carried: Carried, source: str, told: Sequence[Finding]) -> None:
    made.add(0, f"# Made by `fleetctl init --from-command` of {comment(source.rpartition('/')[2])}.")
    made.add(0, "# The reference is docs/user/job-file.md.")
    listed = [finding for finding in told if finding.code in _TOLD_IN_FILE]
    if listed:
        made.add(0, "# Not carried over as it stood:")
    for finding in listed[:_MOST_TOLD]:
        made.add(0, f"#   line {finding.line}: {comment(finding.message)}")
    made.add(0, "apiVersion: benchfleet/v1")
    made.add(0, "kind: Job")
    model = carried.model_path.text if carried.model_path and carried.model_path.is_known else "pasted"
    made.add(0, f"name: {scalar(job_name(model))}")
    path = carried.model_path.text if carried.model_path else "$MODEL"
    line = carried.lines.get("model.path", 0)
    made.add(0, "")
    made.add(0, "model:", "model", line)
    made.add(1, f"path: {scalar(path)}{_fill(carried, 'model.path')}", "model.path", line)


def _engine(made: JobText, carried: Carried) -> None:
    made.add(0, "")
    made.add(0, "engine:")
    made.add(1, "kind: sglang")
    if carried.box is not None:
        _container(made, carried, carried.box)
    elif carried.python is not None and ("/" in carried.python.text or not carried.python.is_known):
        made.add(1, f"python: {scalar(carried.python.text)}{_fill(carried, 'engine.python')}", "engine.python", carried.python.line)
    if carried.entry == "serve":
        made.add(1, "entry: serve", "engine.entry", carried.entry_line)
    if carried.hosts > 1 or "engine.nodes" in carried.unfilled:
        count = str(carried.hosts) if carried.hosts > 1 else '"${NODES}"'
        made.add(1, f"nodes: {count}{_fill(carried, 'engine.nodes')}", "engine.nodes", carried.lines.get("engine.nodes", 0))
    if carried.gpus is not None:
        made.add(1, f"gpus: {carried.gpus}", "engine.gpus", carried.lines.get("args.tp_size", 0))
    args = {name: value for name, value in carried.args.items() if not is_speculation(name, carried)}
    _section(made, 1, "args", {name: written(value) for name, value in args.items()}, carried, "engine")
    _section(made, 1, "env", {name: scalar(value.text) for name, value in carried.env.items() if not is_factor(name)}, carried, "engine")
    made.add(1, "ready_timeout: 30m")


def _container(made: JobText, carried: Carried, box: Box) -> None:
    made.add(1, "container:", "engine.container", box.line)
    python = carried.python.text if carried.python and "/" in carried.python.text else ""
    shm_size = "" if box.ipc == "host" else memory_size(box.shm_size)
    keys = {"image": box.image.text or "$IMAGE", "runtime": box.runtime, "shm_size": shm_size, "python": python}
    for key, value in keys.items():
        if value:
            made.add(2, f"{key}: {scalar(value)}{_fill(carried, f'engine.container.{key}')}", f"engine.container.{key}", box.line)
    if box.mounts:
        made.add(2, "mounts: # inside: on the host", "engine.container.mounts", box.line)
        for inside, host in box.mounts.items():
            made.add(3, f"{scalar(inside)}: {scalar(host.text)}", f"engine.container.mounts.{inside}", host.line)


def _section(made: JobText, depth: int, name: str, values: Mapping[str, str], carried: Carried, above: str) -> None:
    if not values:
        made.add(depth, f"{name}: {{}}")
        return
    made.add(depth, f"{name}:")
    for key, value in values.items():
        note = _fill(carried, f"{name}.{key}")
        made.add(depth + 1, f"{scalar(key)}: {value}{note}", f"{above}.{name}.{key}", carried.lines.get(f"{name}.{key}", 0))


def _fill(carried: Carried, key: str) -> str:
    line = carried.unfilled.get(key)
    return "" if line is None else f" # fill in: line {line} of the pasted file holds no value"


def is_speculation(name: str, carried: Carried) -> bool:
    """True for an argument that belongs to the factor `speculation`."""
    return name.startswith("speculative_") and bool(carried.args.get("speculative_algorithm"))


def is_factor(name: str) -> bool:
    """True for a variable that belongs to the factor `nccl`: it tunes, rather than logs or names the host's devices."""
    return name.startswith(("NCCL_", "RCCL_")) and not _IN_ENGINE.fullmatch(name)


def _factors(made: JobText, carried: Carried) -> None:
    speculation = {name: written(value) for name, value in carried.args.items() if is_speculation(name, carried)}
    nccl = {name: scalar(value.text) for name, value in carried.env.items() if is_factor(name)}
    if not speculation and not nccl:
        return
    made.add(0, "")
    made.add(0, "# Every combination of levels is a variant: does what was pasted pay off?")
    made.add(0, "factors:")
    if speculation:
        made.add(1, "speculation:")
        made.add(2, "none: {}")
        made.add(2, "as-given:")
        _section(made, 3, "args", speculation, carried, "factors.speculation.as-given")
    if nccl:
        made.add(1, "nccl:")
        made.add(2, "default: {}")
        made.add(2, "as-given:")
        _section(made, 3, "env", nccl, carried, "factors.nccl.as-given")
    made.add(0, "")
    made.add(0, "# What all others are compared with.")
    made.add(0, "baseline:")
    for name, level in (("speculation", "none" if speculation else ""), ("nccl", "default" if nccl else "")):
        if level:
            made.add(1, f"{name}: {level}")


def memory_size(written: str) -> str:
    """A size as docker takes it, of what compose and Kubernetes take too: `10gb`, `1.5 GiB`, `16Gi`; anything else as it stands."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)i?b?", written.strip().lower())
    if not found:
        return written
    number, unit = float(found[1]), found[2]
    while unit == "t" or (not number.is_integer() and unit in ("g", "m", "k")):
        number, unit = number * 1024, {"t": "g", "g": "m", "m": "k", "k": "b"}[unit]
    return f"{int(number)}{unit}"


def job_name(model: str) -> str:
    """A job's name made of a model's: small letters, digits and dashes."""
    base = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rpartition("/")[2].lower()).strip("-")[:40].strip("-")
    return base or "pasted"


def written(value: Any) -> str:
    """A typed value as YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(written(item) for item in value)}]"
    return scalar(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    shown = repr(value)
    return shown if "e" not in shown or "." in shown else shown.replace("e", ".0e")


def scalar(value: str) -> str:
    """A text as a YAML 1.2 scalar that reads back as the same text."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escaped(char) for char in quoted)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def comment(words: str) -> str:
    """A text that can stand behind `#`."""
    return "".join(char if char.isprintable() else " " for char in words)[:200]
