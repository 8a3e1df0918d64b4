"""Checks all hosts of a fleet file: names, addresses, and how each host is reached. Each rule
yields findings.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fleet_controller.core.inventory import AGENT_PORT, Ssh
from fleet_controller.fleet_file.build_inventory import file_ssh_settings
from fleet_controller.fleet_file.name_ranges import MOST_NAMES, BadRange
from fleet_controller.fleet_file.parsed_fleet import PLACEHOLDER, Layers, ParsedFleet
from fleet_controller.fleet_file.ssh_settings import PathRoots, ReachNote, resolve_ssh
from fleet_controller.ssh.ssh_config import SshConfig
from fleet_controller.yaml.fields import NAME_PATTERN
from fleet_controller.yaml.findings import INFO, Finding
from fleet_controller.yaml.key_path import KeyPath

MOST_HOSTS = MOST_NAMES
_ADDRESS = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
_OTHER_PLACEHOLDER = re.compile(r"\{(?!name\})[^}]*\}|[{}]")


@dataclass(slots=True)
class HostsSeen:
    """Collects what is found while the hosts are checked: the path of each name, how each host is
    reached, and the host at each address.

    `same` holds pairs of entries already reported for sharing an address. `notes` maps a path and a
    code to the first note and the hosts that it applies to.
    """

    names: dict[str, KeyPath] = field(default_factory=dict)
    ssh_by_host: dict[str, Ssh] = field(default_factory=dict)
    places: dict[tuple[object, ...], tuple[str, KeyPath]] = field(default_factory=dict)
    same: set[tuple[KeyPath, KeyPath]] = field(default_factory=set)
    notes: dict[tuple[KeyPath, str], tuple[ReachNote, list[str]]] = field(default_factory=dict)


def check_hosts(
    parsed: ParsedFleet, config: SshConfig, paths: PathRoots, seen: HostsSeen
) -> Iterator[Finding]:
    """Yield all findings about names, addresses and ssh settings. Afterwards `seen.ssh_by_host`
    holds every host whose entry is valid.
    """
    yield from _check_not_empty(parsed)
    yield from _check_shared_addresses(parsed)
    for layers in parsed.layers():
        try:
            names = layers.names()
        except BadRange as bad:
            yield _bad_range_finding(parsed, (*layers.path, "name"), layers.entry.name, bad)
            continue
        yield from _check_names(parsed, layers, names)
        yield from _check_duplicates(parsed, layers, names, seen)
        if len(seen.names) > MOST_HOSTS:
            message = f"the fleet has more than {MOST_HOSTS} hosts"
            yield parsed.finding(
                "too_many_hosts",
                (*layers.path, "name"),
                message,
                "check whether a range has a digit too many",
            )
            return
        yield from _check_reach(parsed, layers, names, config, paths, seen)
    for (path, _), (note, hosts) in seen.notes.items():
        among = f" ({hosts[0]} and {len(hosts) - 1} more)" if len(hosts) > 1 else ""
        yield parsed.finding(
            note.code, path, note.message + among, note.hint, severity=note.severity
        )
    yield from _check_ssh_config(parsed, config)


def _check_not_empty(parsed: ParsedFleet) -> Iterator[Finding]:
    if (
        not parsed.fleet.hosts
        and not parsed.fleet.groups
        and parsed.is_sound(("hosts",), ("groups",))
    ):
        path: KeyPath = ("hosts",) if "hosts" in parsed.written(()) else ("groups",)
        yield parsed.finding(
            "no_hosts", path, "the fleet has no hosts", "write `hosts: [gpu01, gpu02]`", at_key=True
        )


def _check_shared_addresses(parsed: ParsedFleet) -> Iterator[Finding]:
    """Report addresses that several hosts would share, because an address in a group or in
    `defaults` has no `{name}`. Also report unknown placeholders.
    """
    for path, block in parsed.blocks():
        written, at = block.address, (*path, "address")
        if written is None:
            continue
        entry = "name" in type(block).model_fields
        if _OTHER_PLACEHOLDER.search(written.replace(PLACEHOLDER, "")):
            message = f"`{written[:60]}` contains an unknown placeholder"
            yield parsed.finding(
                "bad_address",
                at,
                message,
                f"the only placeholder is `{PLACEHOLDER}`, the name of the host",
            )
        elif not entry and PLACEHOLDER not in written:
            message = f"`{written[:60]}` would be the address of all hosts of this section"
            yield parsed.finding(
                "bad_address",
                at,
                message,
                (
                    f"write `{PLACEHOLDER}` in place of the host's name, or give each host its own "
                    "address"
                ),
            )


def _bad_range_finding(parsed: ParsedFleet, path: KeyPath, written: str, bad: BadRange) -> Finding:
    return parsed.finding("bad_range", path, f"`{written[:60]}` {bad.problem}", bad.hint)


def _check_names(parsed: ParsedFleet, layers: Layers, names: Sequence[str]) -> Iterator[Finding]:
    bad = next((name for name in names if not re.fullmatch(NAME_PATTERN, name)), None)
    if bad is not None:
        hint = (
            "use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both "
            "ends; write the address as `address`"
        )
        yield parsed.finding(
            "bad_name", (*layers.path, "name"), f"`{bad[:80]}` is not a valid host name", hint
        )


def _check_duplicates(
    parsed: ParsedFleet, layers: Layers, names: Sequence[str], seen: HostsSeen
) -> Iterator[Finding]:
    """Yield one finding for each earlier entry that already has some of the names."""
    path: KeyPath = (*layers.path, "name")
    twice: dict[KeyPath, list[str]] = {}
    for name in names:
        if name in seen.names:
            twice.setdefault(seen.names[name], []).append(name)
        seen.names.setdefault(name, path)
    for first, again in twice.items():
        yield _duplicate_finding(parsed, path, first, again)


def _duplicate_finding(
    parsed: ParsedFleet, path: KeyPath, first: KeyPath, again: Sequence[str]
) -> Finding:
    hosts = f"`{again[0]}`" if len(again) == 1 else f"`{again[0]}` and {len(again) - 1} more"
    where = "in this entry" if first == path else f"in line {parsed.line(first)}"
    message = f"{hosts} {'is' if len(again) == 1 else 'are'} listed twice: first {where}"
    return parsed.finding(
        "duplicate_host", path, message, "remove one of the entries, or make the range smaller"
    )


def _check_reach(
    parsed: ParsedFleet,
    layers: Layers,
    names: Sequence[str],
    config: SshConfig,
    paths: PathRoots,
    seen: HostsSeen,
) -> Iterator[Finding]:
    at = _address_path(layers)
    try:
        addresses = layers.addresses(tuple(names))
    except BadRange as bad:
        yield _bad_range_finding(parsed, at, str(layers.value("address")), bad)
        return
    bad_one = next((address for address in addresses if not _is_address(address)), None)
    if bad_one is not None:
        if layers.value("address") is None or _OTHER_PLACEHOLDER.search(
            layers.value("address").replace(PLACEHOLDER, "")
        ):
            return  # the name or the placeholder has a finding already
        hint = "write only a host name or an IP address; user and ports have their own keys"
        yield parsed.finding("bad_address", at, f"`{bad_one[:60]}` is not an address", hint)
        return
    shared = (
        at[:-1] != layers.path
        and layers.value("address") is not None
        and PLACEHOLDER not in layers.value("address")
    )
    file_settings = file_ssh_settings(layers)
    for name, address in zip(names, addresses, strict=True):
        way, notes = resolve_ssh(address, file_settings, config, paths)
        seen.ssh_by_host.setdefault(name, way)
        for note in notes:
            note_path = (
                layers.where(note.key)
                if note.key and layers.value(note.key) is not None
                else (*layers.path, "name")
            )
            seen.notes.setdefault((note_path, note.code), (note, []))[1].append(name)
        if not shared:  # a shared address has its finding already
            yield from _check_same_address(parsed, layers, name, way, seen)


def _address_path(layers: Layers) -> KeyPath:
    return (
        layers.where("address") if layers.value("address") is not None else (*layers.path, "name")
    )


def _is_address(text: str) -> bool:
    """Return True for a host name, or an IP address with or without brackets."""
    if _ADDRESS.fullmatch(text):
        return True
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]")).version == 6
    except ValueError:
        return False


def _check_same_address(
    parsed: ParsedFleet, layers: Layers, name: str, way: Ssh, seen: HostsSeen
) -> Iterator[Finding]:
    """Report two agents at one address and port. The same address behind different jump hosts is
    another machine.
    """
    port = layers.value("agent_port") or AGENT_PORT
    through = tuple((jump.address, jump.port) for jump in way.jumps)
    other, path = seen.places.setdefault(
        ("at", through, way.address, way.port if through else 0, port), (name, layers.path)
    )
    if other != name and (layers.path, path) not in seen.same:
        seen.same.add((layers.path, path))
        message = (
            f"`{name}` and `{other}` (line {parsed.line(path)}) are both at {way.address}, port "
            f"{port}"
        )
        hint = (
            "give each host its own address; two agents on one machine need different values of "
            "`agent_port`"
        )
        yield parsed.finding("same_address", _address_path(layers), message, hint)


def _check_ssh_config(parsed: ParsedFleet, config: SshConfig) -> Iterator[Finding]:
    if config.problem:
        yield parsed.finding(
            "ssh_config",
            (),
            f"{config.file}: {config.problem}",
            "fix this file; `ssh -G HOST` shows what is wrong",
        )
    if config.ignored:
        message = f"{config.file} uses {' and '.join(config.ignored)}, which benchfleet ignores"
        hint = "write the settings that these hosts need into the fleet file"
        yield parsed.finding("ssh_config_ignored", (), message, hint, severity=INFO)
