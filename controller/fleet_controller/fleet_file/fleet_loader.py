"""Loads a fleet file. Returns a checked fleet with its findings, or raises an error that lists
everything that is wrong with the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from fleet_controller.core.inventory import Inventory
from fleet_controller.fleet_file.build_inventory import build_inventory
from fleet_controller.fleet_file.fleet_checks import check_blocks
from fleet_controller.fleet_file.fleet_format import FLEET_FORMAT
from fleet_controller.fleet_file.fleet_models import FleetFile
from fleet_controller.fleet_file.host_entry_checks import HostsSeen, check_hosts
from fleet_controller.fleet_file.parsed_fleet import ParsedFleet
from fleet_controller.fleet_file.ssh_settings import PathRoots
from fleet_controller.job_file.job_loader import decode_text
from fleet_controller.ssh.ssh_config import SshConfig, user_ssh_config
from fleet_controller.yaml.document import LARGEST_BYTES, Document, read_document
from fleet_controller.yaml.findings import ERROR, Finding, FleetRejected, has_errors, in_order
from fleet_controller.yaml.key_path import KeyPath
from fleet_controller.yaml.pydantic_errors import pydantic_findings
from fleet_protos.errors import ConfigError

_MOST_REPAIRS = 8  # removing one broken part can empty another
_STAND_INS: dict[str, Any] = {"apiVersion": "benchfleet/v1", "kind": "Fleet"}


@dataclass(frozen=True, slots=True)
class LoadedFleet:
    """A fleet that may be used, and the findings about its file that are not errors."""

    inventory: Inventory
    findings: tuple[Finding, ...]


def load_fleet_file(path: FilePath) -> LoadedFleet:
    """Read and check the file at `path`. Raises FleetRejected if its content is wrong. Raises
    ConfigError if it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            "give the path of a fleet file; `fleetctl init --fleet` writes one",
        ) from error
    return check_fleet(content, str(path))


def load_fleet(text: str | bytes, file: str) -> Inventory:
    """Return the fleet that the text of a file describes. Raises FleetRejected with every finding
    if at least one finding is an error.
    """
    return check_fleet(text, file).inventory


def check_fleet(
    text: str | bytes, file: str, config: SshConfig | None = None, home: FilePath | None = None
) -> LoadedFleet:
    """Check a whole fleet file.

    `config` has the ssh settings for what the file leaves open. By default this is the user's ssh
    configuration. `home` is the user's home folder. Paths in the file are relative to its folder.
    Raises FleetRejected with every finding if at least one finding is an error.
    """
    document = _document(text, file)
    parsed, faults = _read_models(document)
    config = user_ssh_config(home) if config is None else config
    paths = PathRoots(home or FilePath.home(), FilePath(file).absolute().parent)
    seen = HostsSeen()
    found = [
        *document.findings,
        *faults,
        *check_blocks(parsed),
        *check_hosts(parsed, config, paths, seen),
    ]
    if has_errors(found):
        raise FleetRejected(found)
    return LoadedFleet(build_inventory(parsed, seen.ssh_by_host), in_order(found))


def _document(text: str | bytes, file: str) -> Document:
    document = read_document(decode_text(text, file, FleetRejected), file, _is_verbatim)
    if isinstance(document.value, dict):
        return replace(
            document,
            value={key: value for key, value in document.value.items() if not key.startswith("x-")},
        )
    if not document.findings:
        message = "a fleet file is a mapping (`key: value` lines)"
        raise FleetRejected(
            [
                Finding(
                    "not_a_mapping",
                    ERROR,
                    file,
                    1,
                    1,
                    "",
                    message,
                    "`fleetctl init --fleet` writes one",
                )
            ]
        )
    raise FleetRejected(document.findings)


def _is_verbatim(path: KeyPath) -> bool:
    """Return True if the value at `path` stays text even if it looks like a number. Variables,
    labels and names do: `rack: 07` keeps its zero, and a host may be called `12`.
    """
    return len(path) > 1 and (
        path[-2] in ("env", "labels") or path[-1] == "name" or path[-2] == "hosts"
    )


def _read_models(document: Document) -> tuple[ParsedFleet, list[Finding]]:
    """Return the models and the findings about broken values. A stand-in replaces each broken
    value.
    """
    value, broken = document.value, set(document.broken)
    found: list[Finding] = []
    for _ in range(_MOST_REPAIRS):
        try:
            return ParsedFleet(document, FleetFile.model_validate(value), frozenset(broken)), found
        except ValidationError as error:
            reported = list(pydantic_findings(error, replace(document, value=value), FLEET_FORMAT))
        found = found or [finding for _, finding in reported if finding]
        broken.update(path for path, _ in reported)
        for path, _ in reported:
            value = _without(value, path)
    return ParsedFleet(document, FleetFile.model_validate(dict(_STAND_INS)), frozenset({()})), found


def _without(value: Any, path: KeyPath) -> Any:
    """Return a copy of `value` without the entry at `path`. The other items of a list keep their
    index. A stand-in replaces a required value.
    """
    if not path:
        return value
    key, *rest = path
    if isinstance(value, tuple) and isinstance(key, int) and key < len(value):
        entry = (
            _without(value[key], tuple(rest))
            if rest and isinstance(value[key], dict)
            else {"name": "x"}
        )
        return (*value[:key], entry, *value[key + 1 :])
    if not isinstance(value, dict):
        return value
    if rest and isinstance(value.get(str(key)), dict | tuple):
        return {**value, str(key): _without(value[str(key)], tuple(rest))}
    left = {name: content for name, content in value.items() if name != key}
    return left | _stand_in(path, value)


def _stand_in(path: KeyPath, value: dict[str, Any]) -> dict[str, Any]:
    key = str(path[0])
    if len(path) == 1 and key == "name" and "apiVersion" not in value:
        return {"name": "x"}
    if key == "hosts" and "apiVersion" not in value:
        return {"hosts": ("x",)}
    return {key: _STAND_INS[key]} if key in _STAND_INS else {}
