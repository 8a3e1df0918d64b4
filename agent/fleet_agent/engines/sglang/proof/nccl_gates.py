"""Checks whether a job's NCCL variables took effect, from what NCCL shows about the launch: its
log, its files, the loaded library and the chosen algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fleet_knowledge.nccl.inspector_output import InspectorRow
from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.nccl.nccl_conf import NcclConfFile, resolve_settings
from fleet_knowledge.nccl.variable_verification import (
    VariableEvidence,
    VariableState,
    verify_variables,
)
from fleet_knowledge.release import Release
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.environment_rules import find_overwrites
from fleet_protos.trial_types import Gate, GateEffect

ENV_NOT_EFFECTIVE = "env_not_effective"
ENV_UNPROVED = "env_unproved"
NCCL_BYPASSED = "nccl_bypassed"
NCCL_CONF_OVERRIDES = "nccl_conf_overrides"
NCCL_OTHER_LIBRARY = "nccl_other_library"
_ABOUT_LOGGING = "NCCL_DEBUG"
_CHOOSE_COLLECTIVES = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NcclEvidence:
    """Holds what a launch shows about NCCL.

    `configurations`: NCCL's configuration files on the host.
    `libraries`: the paths of the NCCL libraries that the server mapped.
    `installed`: the version of the NCCL package installed for the server's Python.
    `inspected`: what NCCL Inspector recorded.
    """

    facts: NcclFacts = field(default_factory=NcclFacts)
    configurations: tuple[NcclConfFile, ...] = ()
    libraries: tuple[str, ...] = ()
    installed: str = ""
    ranks: int = 0  # GPUs on all hosts of the server
    proof: str = ""
    witness: bool = False
    names_all: bool = False  # the log names every variable that the server sees
    inspected: tuple[InspectorRow, ...] = ()

    @property
    def has_output(self) -> bool:
        """Return whether NCCL wrote anything at all."""
        return bool(self.facts.info_lines or self.facts.warn_lines or self.facts.versions)

    @property
    def logs_choices(self) -> bool:
        """Return whether the log records each choice of algorithm and protocol."""
        return self.witness or self.proof == "timed"


def check_nccl(
    env: Mapping[str, str], evidence: NcclEvidence, info: Mapping[str, Any]
) -> tuple[Gate, ...]:
    """Return a gate for each difference between what the job's variables set and what NCCL shows.

    `info` holds the server's resolved arguments and version. The result is empty for a job without
    NCCL variables on a host without NCCL.
    """
    return (
        *_check_environment(env, evidence, info),
        *_check_configurations(env, evidence),
        *_check_library(evidence),
        *_check_bypass(env, evidence),
    )


def values_seen(facts: NcclFacts) -> dict[str, str]:
    """Return each variable that NCCL named, with its value: `a | b` if ranks have
    different values.
    """
    return {name: " | ".join(values) for name, values in facts.settings.items()}


def nccl_to_json(evidence: NcclEvidence) -> dict[str, Any]:
    """Return what NCCL showed, as JSON for the trial's record. The result is empty if it showed
    nothing.
    """
    found: dict[str, Any] = evidence.facts.to_json() if evidence.has_output else {}
    if evidence.libraries:
        found["libraries"] = list(evidence.libraries)
    if evidence.configurations:
        found["configuration"] = {
            name: asdict(setting)
            for name, setting in resolve_settings({}, *evidence.configurations).items()
        }
    if evidence.inspected:
        found["inspected"] = [asdict(row) for row in evidence.inspected]
    return found


def _check_environment(
    env: Mapping[str, str], evidence: NcclEvidence, info: Mapping[str, Any]
) -> Iterator[Gate]:
    unproved = []
    for proved in verify_variables(env, evidence.facts, evidence.ranks):
        name = proved.variable
        if name.startswith(_ABOUT_LOGGING) or proved.state is VariableState.EFFECTIVE:
            continue
        lost = (
            evidence.names_all
            and name not in evidence.facts.settings
            and evidence.facts.info_lines > 0
        )
        if lost or proved.state in (VariableState.OTHER_VALUE, VariableState.MISSING):
            reason = "NCCL's log does not name the variable" if lost else proved.detail
            by_sglang = _by_sglang(name, env[name], info)
            message = f"{name}={env[name]} did not reach NCCL: {reason}{by_sglang}"
            yield Gate(ENV_NOT_EFFECTIVE, GateEffect.VOID_TRIAL, message)
        else:
            unproved.append(f"{name}={env[name]} ({_why(proved, evidence)})")
    if unproved:
        found = "; ".join(unproved)
        yield Gate(
            ENV_UNPROVED,
            GateEffect.FLAG,
            f"nothing shows that these NCCL variables took effect: {found}",
        )


def _why(proved: VariableEvidence, evidence: NcclEvidence) -> str:
    return (
        "engine.proof is off"
        if proved.state is VariableState.NO_EVIDENCE and evidence.proof == "off"
        else proved.detail
    )


def _by_sglang(name: str, value: str, info: Mapping[str, Any]) -> str:
    """Return a remark if SGLang itself sets the variable, else an empty text."""
    asked = ServerConfiguration(
        args=info, env={name: value}, release=Release.parse(str(info.get("version", "")))
    )
    row = next((found.change for found in find_overwrites(asked) if found.sure), None)
    return (
        f" (SGLang itself sets it to {row.value}{f', because of {row.why}' if row.why else ''})"
        if row
        else ""
    )


def _check_configurations(env: Mapping[str, str], evidence: NcclEvidence) -> Iterator[Gate]:
    """Yield a gate if an NCCL file of the host sets a variable that the job leaves unset, or sets
    another value than the job.

    The environment takes precedence over these files.
    """
    conflicts = []
    for name, setting in resolve_settings(env, *evidence.configurations).items():
        if setting.source != "environment":
            conflicts.append(f"{setting.source} sets {name}={setting.value}")
        against = [(source, value) for source, value in setting.hidden if value != setting.value]
        conflicts += [
            f"{source} sets {name}={value}, but {setting.value} takes effect"
            for source, value in against
        ]
    if conflicts:
        found = "; ".join(conflicts)
        message = f"NCCL reads configuration files of this host: {found}"
        yield Gate(NCCL_CONF_OVERRIDES, GateEffect.FLAG, message)


def _check_library(evidence: NcclEvidence) -> Iterator[Gate]:
    if len(evidence.libraries) > 1:
        paths = ", ".join(evidence.libraries)
        yield Gate(
            NCCL_OTHER_LIBRARY,
            GateEffect.FLAG,
            f"the server loaded several NCCL libraries: {paths}",
        )
    loaded, installed = Release.parse(evidence.facts.version), Release.parse(evidence.installed)
    if loaded and installed and loaded != installed:
        where = f" from {evidence.libraries[0]}" if evidence.libraries else ""
        message = (
            f"NCCL {loaded} is loaded{where}, but the package in the server's Python environment"
            f" is {installed}"
        )
        yield Gate(NCCL_OTHER_LIBRARY, GateEffect.FLAG, message)


def _check_bypass(env: Mapping[str, str], evidence: NcclEvidence) -> Iterator[Gate]:
    """Yield a gate if the log has choices for other collectives, but none for an all-reduce.

    In this case something else than NCCL carried the all-reduces.
    """
    varied = [name for name in _CHOOSE_COLLECTIVES if name in env]
    named = {choice.func for choice in evidence.facts.tuning}
    if (
        varied
        and evidence.logs_choices
        and named
        and None not in named
        and "AllReduce" not in named
    ):
        functions = ", ".join(sorted(name for name in named if name))
        settings = ", ".join(varied)
        message = (
            f"NCCL carried {functions}, but no all-reduce: {settings} cannot affect"
            " all-reduces, which custom all-reduce carries"
        )
        yield Gate(NCCL_BYPASSED, GateEffect.FLAG, message)
