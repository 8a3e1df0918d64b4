"""Owns the gates about NCCL: a job's variables against what NCCL itself shows of a launch, its files, its library, its choices. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fleet_knowledge.nccl.inspector_output import Observed
from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.nccl.nccl_conf import Source, combine
from fleet_knowledge.nccl.variable_verification import Proved, State, environment
from fleet_knowledge.release import Release
from fleet_knowledge.server_configuration import Configuration
from fleet_knowledge.sglang.environment_rules import overwrites
from fleet_protos.trial_types import Gate, GateEffect

ENV_NOT_EFFECTIVE = "env_not_effective"
ENV_UNPROVED = "env_unproved"
NCCL_BYPASSED = "nccl_bypassed"
NCCL_CONF_OVERRIDES = "nccl_conf_overrides"
NCCL_OTHER_LIBRARY = "nccl_other_library"
_ABOUT_LOGGING = "NCCL_DEBUG"
_CHOOSE_COLLECTIVES = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """What a launch shows of NCCL. `installed`: version of the package beside the server's Python; `libraries`: those that it mapped."""

    facts: NcclFacts = field(default_factory=NcclFacts)
    configurations: tuple[Source, ...] = ()
    libraries: tuple[str, ...] = ()
    installed: str = ""
    ranks: int = 0  # GPUs on all hosts of the server
    proof: str = ""
    witness: bool = False
    names_all: bool = False  # the log names every variable that the server sees
    inspected: tuple[Observed, ...] = ()

    @property
    def spoke(self) -> bool:
        """NCCL wrote anything at all."""
        return bool(self.facts.info_lines or self.facts.warn_lines or self.facts.versions)

    @property
    def tells_choices(self) -> bool:
        """The log was asked for each choice of algorithm and protocol."""
        return self.witness or self.proof == "timed"


def gates(env: Mapping[str, str], shown: Shown, info: Mapping[str, Any]) -> tuple[Gate, ...]:
    """What the job's variables and NCCL's own words do not agree in; none for a job without NCCL variables on a host without NCCL.

    `info`: the server's resolved arguments and version.
    """
    return (*_environment(env, shown, info), *_configurations(env, shown), *_library(shown), *_bypassed(env, shown))


def values_seen(facts: NcclFacts) -> dict[str, str]:
    """Each variable that NCCL named, with its value; several where its ranks differ."""
    return {name: " | ".join(values) for name, values in facts.settings.items()}


def to_json(shown: Shown) -> dict[str, Any]:
    """What NCCL showed, for the record: empty when it showed nothing at all."""
    found: dict[str, Any] = shown.facts.to_json() if shown.spoke else {}
    if shown.libraries:
        found["libraries"] = list(shown.libraries)
    if shown.configurations:
        found["configuration"] = {name: asdict(setting) for name, setting in combine({}, *shown.configurations).items()}
    if shown.inspected:
        found["inspected"] = [asdict(row) for row in shown.inspected]
    return found


def _environment(env: Mapping[str, str], shown: Shown, info: Mapping[str, Any]) -> Iterator[Gate]:
    unproved = []
    for proved in environment(env, shown.facts, shown.ranks):
        name = proved.variable
        if name.startswith(_ABOUT_LOGGING) or proved.state is State.EFFECTIVE:
            continue
        lost = shown.names_all and name not in shown.facts.settings and shown.facts.info_lines > 0
        if lost or proved.state in (State.OTHER_VALUE, State.MISSING):
            told = "NCCL's log does not name it" if lost else proved.detail
            message = f"{name}={env[name]} did not reach NCCL: {told}{_by_sglang(name, env[name], info)}"
            yield Gate(ENV_NOT_EFFECTIVE, GateEffect.VOID_TRIAL, message)
        else:
            unproved.append(f"{name}={env[name]} ({_why(proved, shown)})")
    if unproved:
        yield Gate(ENV_UNPROVED, GateEffect.FLAG, f"nothing shows that these took effect: {'; '.join(unproved)}")


def _why(proved: Proved, shown: Shown) -> str:
    return "engine.proof is off" if proved.state is State.NO_EVIDENCE and shown.proof == "off" else proved.detail


def _by_sglang(name: str, value: str, info: Mapping[str, Any]) -> str:
    """That SGLang itself writes the variable, where it does."""
    asked = Configuration(args=info, env={name: value}, release=Release.read(str(info.get("version", ""))))
    row = next((found.change for found in overwrites(asked) if found.sure), None)
    return f" (SGLang itself sets it to {row.value}{f', because of {row.why}' if row.why else ''})" if row else ""


def _configurations(env: Mapping[str, str], shown: Shown) -> Iterator[Gate]:
    """A file of the host that decides what the job does not, or that the job contradicts; the environment is stronger than either file."""
    told = []
    for name, setting in combine(env, *shown.configurations).items():
        if setting.source != "environment":
            told.append(f"{setting.source} sets {name}={setting.value}")
        against = [(source, value) for source, value in setting.hidden if value != setting.value]
        told += [f"{source} says {name}={value}, {setting.value} counts" for source, value in against]
    if told:
        message = f"NCCL reads files of this host at each launch: {'; '.join(told)}"
        yield Gate(NCCL_CONF_OVERRIDES, GateEffect.FLAG, message)


def _library(shown: Shown) -> Iterator[Gate]:
    if len(shown.libraries) > 1:
        yield Gate(NCCL_OTHER_LIBRARY, GateEffect.FLAG, f"the server has several NCCL libraries loaded: {', '.join(shown.libraries)}")
    loaded, installed = Release.read(shown.facts.version), Release.read(shown.installed)
    if loaded and installed and loaded != installed:
        where = f" from {shown.libraries[0]}" if shown.libraries else ""
        message = f"NCCL {loaded} is loaded{where}, and the package installed beside the server is {installed}"
        yield Gate(NCCL_OTHER_LIBRARY, GateEffect.FLAG, message)


def _bypassed(env: Mapping[str, str], shown: Shown) -> Iterator[Gate]:
    """A whole log with choices for other collectives and none for an all-reduce: something else carried those."""
    varied = [name for name in _CHOOSE_COLLECTIVES if name in env]
    named = {choice.func for choice in shown.facts.tuning}
    if varied and shown.tells_choices and named and None not in named and "AllReduce" not in named:
        functions = ", ".join(sorted(name for name in named if name))
        message = f"no all-reduce reached NCCL, only {functions}: {', '.join(varied)} cannot matter to it (custom all-reduce carries it)"
        yield Gate(NCCL_BYPASSED, GateEffect.FLAG, message)
