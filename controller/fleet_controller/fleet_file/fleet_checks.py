"""Owns the rules that look at one mapping of a fleet file: labels, variables, patterns, keys that contradict. Each yields findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fleet_controller.core.inventory import AGENT_PORT
from fleet_controller.fleet_file.fleet_models import HostKeys
from fleet_controller.fleet_file.parsed_fleet import FleetReading, Layers
from fleet_controller.job_file.argument_checks import OWN_VARIABLES, VARIABLE
from fleet_controller.job_file.checks_launch import looks_secret, wrong_reference
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import WARNING, Finding

_LABEL = re.compile(r"[A-Za-z_]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9_])?")
_LONGEST_LABEL = 128
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")
_SSH_PORT = 22
_FIRST_FREE_PORT = 1024  # net.ipv4.ip_unprivileged_port_start, as Linux has it
_LIKELY = {"agent_port": f"{AGENT_PORT}", "metrics": "9464"}
Rule = Callable[[FleetReading], Iterator[Finding]]


def check_blocks(reading: FleetReading) -> Iterator[Finding]:
    """All findings that need no more than one mapping, or one entry with what stands behind it."""
    for path, block in reading.blocks():
        for rule in (_labels, _variables, _allowed, _one_server):
            yield from rule(reading, path, block)
    for layers in reading.layers():
        for check in (_contradicting_labels, _load_only, _ports):
            yield from check(reading, layers)


def _labels(reading: FleetReading, block: Path, keys: HostKeys) -> Iterator[Finding]:
    for name, value in keys.labels.items():
        path = (*block, "labels", name)
        if not _LABEL.fullmatch(name):
            hint = "letters, digits, `_`, `.`, `/` and `-`, a letter first"
            yield reading.finding("bad_label", path, f"`{name[:60]}` cannot be the name of a label", hint, at_key=True)
        elif not value.strip() or len(value) > _LONGEST_LABEL or not value.isprintable() or value != value.strip():
            told = "empty" if not value.strip() else "no printable text without spaces around it, of at most 128 letters"
            yield reading.finding("bad_label", path, f"label `{name}` is {told}", "write a short value, such as `h200`")


def _variables(reading: FleetReading, block: Path, keys: HostKeys) -> Iterator[Finding]:
    for name, value in keys.env.items():
        path = (*block, "env", name)
        if name in OWN_VARIABLES or name.startswith("BENCHFLEET_"):
            message = f"`{name}` is not for a fleet file to set"
            hint = OWN_VARIABLES.get(name, "the agent sets those of this name")
            yield reading.finding("reserved_variable", path, message, hint, at_key=True)
        elif not VARIABLE.fullmatch(name):
            message = f"`{name[:60]}` cannot be the name of a variable"
            yield reading.finding("bad_variable", path, message, "letters, digits and `_`, no digit first", at_key=True)
        elif wrong_reference(value):
            message = f"`{name}` is no reference to a secret: the whole value is secret:// and a name of letters, digits and `_`"
            yield reading.finding("bad_secret", path, message, f"write {name}: secret://{name.lower()}")
        elif looks_secret(name, value):
            hint = f"write secret://{name.lower()}, and the value into the secrets file of each host (docs/user/job-file.md)"
            yield reading.finding("plain_secret", path, f"`{name}` looks like a secret, and a fleet file is shared", hint, severity=WARNING)


def _allowed(reading: FleetReading, block: Path, keys: HostKeys) -> Iterator[Finding]:
    for place, pattern in enumerate(keys.allow.env):
        if not _VARIABLE_PATTERN.fullmatch(pattern):
            written = reading.document.at((*block, "allow", "env"), "")
            path: Path = (*block, "allow", "env", place) if isinstance(written, tuple) else (*block, "allow", "env")
            yield reading.finding("bad_pattern", path, f"`{pattern[:60]}` matches no variable", "write a name, or a pattern such as `MY_*`")


def _one_server(reading: FleetReading, block: Path, keys: HostKeys) -> Iterator[Finding]:
    if keys.python is not None and keys.image is not None:
        message = "servers run with `python` or in `image`, not both"
        yield reading.finding("python_and_image", (*block, "image"), message, "remove one; a job may choose the other", at_key=True)


def _contradicting_labels(reading: FleetReading, layers: Layers) -> Iterator[Finding]:
    """A host that says otherwise than its group; what all hosts share is there to be overridden."""
    for path, group in layers.behind:
        for name, value in group.labels.items() if path != ("defaults",) else ():
            own = layers.entry.labels.get(name, value)
            if own != value:
                line = reading.line((*path, "labels", name))
                message = f"label {name} is `{own}`, and its group `{path[1]}` says `{value}` in line {line}"
                hint = "the host's own holds; does it belong into that group?"
                yield reading.finding("label_contradicts", (*layers.path, "labels", name), message, hint, severity=WARNING)


def _load_only(reading: FleetReading, layers: Layers) -> Iterator[Finding]:
    if not layers.value("load_only"):
        return
    for key in ("gpus", "simulated_gpus"):
        if layers.value(key):
            message = f"a host that only drives load gets no trials, so nothing uses its {layers.value(key)} GPUs"
            hint = f"write {key}: 0, or take load_only away"
            path = layers.where(key) if layers.where(key)[: len(layers.path)] == layers.path else layers.path
            yield reading.finding("load_only_gpus", path, message, hint, severity=WARNING)


def _ports(reading: FleetReading, layers: Layers) -> Iterator[Finding]:
    agent, ssh = layers.value("agent_port") or AGENT_PORT, layers.value("port") or _SSH_PORT
    metrics = int(layers.value("metrics").rpartition(":")[2]) if layers.value("metrics") else 0
    if metrics == agent:
        message = f"metrics and the agent itself would both listen on port {agent}"
        yield reading.finding("same_port", layers.where("metrics"), message, "choose another port for one of them")
    for key, who, port in (("agent_port", "the agent", agent), ("metrics", "metrics", metrics)):
        path = layers.where(key)
        if port == ssh:
            message = f"ssh and {who} would both listen on port {port}"
            yield reading.finding("same_port", path, message, f"choose another port for {who}, such as {_LIKELY[key]}")
        elif 0 < port < _FIRST_FREE_PORT:
            message = f"{who} would listen on port {port}: those below {_FIRST_FREE_PORT} are for root, and the agent is a user of its own"
            yield reading.finding("low_port", path, message, f"choose a higher one, such as {_LIKELY[key]}", severity=WARNING)
