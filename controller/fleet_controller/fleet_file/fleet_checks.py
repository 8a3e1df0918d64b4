"""Checks single mappings of a fleet file: labels, variables, patterns, and keys that contradict
each other. Each rule yields findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fleet_controller.core.inventory import AGENT_PORT
from fleet_controller.fleet_file.fleet_models import HostKeys
from fleet_controller.fleet_file.parsed_fleet import Layers, ParsedFleet
from fleet_controller.job_file.argument_checks import RESERVED_VARIABLES, VARIABLE_NAME_PATTERN
from fleet_controller.job_file.engine_checks import (
    is_malformed_secret_reference,
    looks_like_plain_secret,
)
from fleet_controller.yaml.findings import WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath

_LABEL = re.compile(r"[A-Za-z_]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9_])?")
_LONGEST_LABEL = 128
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")
_SSH_PORT = 22
_FIRST_FREE_PORT = 1024  # Linux's default of net.ipv4.ip_unprivileged_port_start
_SUGGESTED_PORTS = {"agent_port": f"{AGENT_PORT}", "metrics": "9464"}
FleetRule = Callable[[ParsedFleet], Iterator[Finding]]


def check_blocks(parsed: ParsedFleet) -> Iterator[Finding]:
    """Yield all findings that concern one mapping, or one host entry together with its group and
    the defaults.
    """
    for path, block in parsed.blocks():
        for rule in (_check_labels, _check_variables, _check_allowed, _check_one_server):
            yield from rule(parsed, path, block)
    for layers in parsed.layers():
        for check in (_check_contradicting_labels, _check_load_only, _check_ports):
            yield from check(parsed, layers)


def _check_labels(parsed: ParsedFleet, block: KeyPath, keys: HostKeys) -> Iterator[Finding]:
    for name, value in keys.labels.items():
        path = (*block, "labels", name)
        if not _LABEL.fullmatch(name):
            hint = "use letters, digits, `_`, `.`, `/` and `-`, with a letter first"
            yield parsed.finding(
                "bad_label",
                path,
                f"`{name[:60]}` is not a valid name of a label",
                hint,
                at_key=True,
            )
        elif (
            not value.strip()
            or len(value) > _LONGEST_LABEL
            or not value.isprintable()
            or value != value.strip()
        ):
            problem = (
                "empty"
                if not value.strip()
                else "longer than 128 characters, not printable, or has spaces around it"
            )
            yield parsed.finding(
                "bad_label",
                path,
                f"label `{name}` is {problem}",
                "write a short value, such as `h200`",
            )


def _check_variables(parsed: ParsedFleet, block: KeyPath, keys: HostKeys) -> Iterator[Finding]:
    for name, value in keys.env.items():
        path = (*block, "env", name)
        if name in RESERVED_VARIABLES or name.startswith("BENCHFLEET_"):
            message = f"a fleet file cannot set `{name}`"
            hint = RESERVED_VARIABLES.get(
                name, "only the agent sets variables that begin with `BENCHFLEET_`"
            )
            yield parsed.finding("reserved_variable", path, message, hint, at_key=True)
        elif not VARIABLE_NAME_PATTERN.fullmatch(name):
            message = f"`{name[:60]}` is not a valid name of a variable"
            yield parsed.finding(
                "bad_variable",
                path,
                message,
                "use letters, digits and `_`, and no digit first",
                at_key=True,
            )
        elif is_malformed_secret_reference(value):
            message = (
                f"`{name}` is not a reference to a secret: the whole value must be `secret://` and "
                "a name of letters, digits and `_`"
            )
            yield parsed.finding(
                "bad_secret", path, message, f"write `{name}: secret://{name.lower()}`"
            )
        elif looks_like_plain_secret(name, value):
            hint = (
                f"write `secret://{name.lower()}`, and put the value into the secrets file of each "
                "host (docs/user/job-file.md)"
            )
            yield parsed.finding(
                "plain_secret",
                path,
                f"`{name}` looks like a secret, but a fleet file is shared",
                hint,
                severity=WARNING,
            )


def _check_allowed(parsed: ParsedFleet, block: KeyPath, keys: HostKeys) -> Iterator[Finding]:
    for place, pattern in enumerate(keys.allow.env):
        if not _VARIABLE_PATTERN.fullmatch(pattern):
            written = parsed.document.value_at((*block, "allow", "env"), "")
            path: KeyPath = (
                (*block, "allow", "env", place)
                if isinstance(written, tuple)
                else (*block, "allow", "env")
            )
            yield parsed.finding(
                "bad_pattern",
                path,
                f"`{pattern[:60]}` cannot match a variable",
                "write a name, or a pattern such as `MY_*`",
            )


def _check_one_server(parsed: ParsedFleet, block: KeyPath, keys: HostKeys) -> Iterator[Finding]:
    if keys.python is not None and keys.image is not None:
        message = "servers run with `python` or in `image`, not with both"
        yield parsed.finding(
            "python_and_image",
            (*block, "image"),
            message,
            "remove one of them; a job may still choose the other",
            at_key=True,
        )


def _check_contradicting_labels(parsed: ParsedFleet, layers: Layers) -> Iterator[Finding]:
    """Report labels of a host that contradict its group. Labels in `defaults` are not compared,
    because they are meant to be overridden.
    """
    for path, group in layers.behind:
        for name, value in group.labels.items() if path != ("defaults",) else ():
            own = layers.entry.labels.get(name, value)
            if own != value:
                line, group_name = parsed.line((*path, "labels", name)), path[1]
                message = (
                    f"label `{name}` is `{own}` here, but `{value}` in the group `{group_name}` "
                    f"(line {line})"
                )
                hint = "the host's own label applies; check that the host belongs to that group"
                yield parsed.finding(
                    "label_contradicts",
                    (*layers.path, "labels", name),
                    message,
                    hint,
                    severity=WARNING,
                )


def _check_load_only(parsed: ParsedFleet, layers: Layers) -> Iterator[Finding]:
    if not layers.value("load_only"):
        return
    for key in ("gpus", "simulated_gpus"):
        if count := layers.value(key):
            message = f"a load-only host gets no trials, so nothing uses its {count} GPUs"
            hint = f"write `{key}: 0`, or remove `load_only`"
            path = (
                layers.where(key)
                if layers.where(key)[: len(layers.path)] == layers.path
                else layers.path
            )
            yield parsed.finding("load_only_gpus", path, message, hint, severity=WARNING)


def _check_ports(parsed: ParsedFleet, layers: Layers) -> Iterator[Finding]:
    agent, ssh = layers.value("agent_port") or AGENT_PORT, layers.value("port") or _SSH_PORT
    metrics = int(layers.value("metrics").rpartition(":")[2]) if layers.value("metrics") else 0
    if metrics == agent:
        message = f"metrics and the agent itself would both listen on port {agent}"
        yield parsed.finding(
            "same_port", layers.where("metrics"), message, "choose another port for one of them"
        )
    for key, who, port in (("agent_port", "the agent", agent), ("metrics", "metrics", metrics)):
        path = layers.where(key)
        if port == ssh:
            message = f"ssh and {who} would both listen on port {port}"
            yield parsed.finding(
                "same_port",
                path,
                message,
                f"choose another port for {who}, such as {_SUGGESTED_PORTS[key]}",
            )
        elif 0 < port < _FIRST_FREE_PORT:
            message = (
                f"{who} would listen on port {port}: ports below {_FIRST_FREE_PORT} need root, and "
                "the agent usually runs as another user"
            )
            yield parsed.finding(
                "low_port",
                path,
                message,
                f"choose a higher port, such as {_SUGGESTED_PORTS[key]}",
                severity=WARNING,
            )
