"""Compares the variables that a job sets with those that NCCL used according to its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.nccl.variables.known_variables import find_variable, is_nccl_name
from fleet_knowledge.nccl.variables.system_variables import SUBSYSTEMS
from fleet_knowledge.nccl.variables.variable import NcclVariable
from fleet_knowledge.release import Release


class VariableState(Enum):
    """The possible answers to whether a variable took effect, according to the log."""

    EFFECTIVE = "effective"
    OTHER_VALUE = "other_value"  # NCCL named another value
    MISSING = "missing"  # NCCL always names it but did not: the server does not have it
    NOT_NAMED = "not_named"  # not named, but NCCL may not have read it, or never names it
    NO_EVIDENCE = "no_evidence"  # there is no log that could have named it


@dataclass(frozen=True, slots=True)
class VariableEvidence:
    """One variable that the job sets, its state, and the reason in words."""

    variable: str
    state: VariableState
    detail: str


def verify_variables(
    env: Mapping[str, str], facts: NcclFacts | None, gpus: int, nodes: int = 1
) -> list[VariableEvidence]:
    """Return the state of every NCCL_ and RCCL_ variable that the job sets in `env`, sorted by
    name. The server runs on `gpus` GPUs of each of `nodes` hosts.

    `facts` come from the log of the same launch; None means that there was no log. Values are
    compared as NCCL reads them: `0x10` is 16, and `4` is SYS.
    """
    return [
        _verify_variable(name, value, env, facts, gpus * max(nodes, 1))
        for name, value in sorted(env.items())
        if is_nccl_name(name)
    ]


def _verify_variable(
    name: str, value: str, env: Mapping[str, str], facts: NcclFacts | None, ranks: int
) -> VariableEvidence:
    row = find_variable(name)
    logged = facts.settings.get(name, ()) if facts else ()
    if logged:
        return _compare_with_log(name, value, row, logged)
    if facts is not None and (seen := _evidence_from_effect(name, value, facts)) is not None:
        return seen
    silence = _never_logged_reason(name, value, row, env, ranks)
    if silence:
        return VariableEvidence(name, VariableState.NOT_NAMED, silence)
    missing = _no_evidence_reason(env, facts)
    if missing:
        return VariableEvidence(name, VariableState.NO_EVIDENCE, missing)
    if row is not None and row.always_read and _is_logged(row, facts):
        return VariableEvidence(
            name,
            VariableState.MISSING,
            "NCCL reads and names the variable at every start, but this log does not name it: "
            "the server started without the variable",
        )
    return VariableEvidence(
        name,
        VariableState.NOT_NAMED,
        f"NCCL did not read it: it does so only when {row.read_when}"
        if row and row.read_when
        else "the log does not name the variable; it is unknown when NCCL reads it",
    )


def _compare_with_log(
    name: str, value: str, row: NcclVariable | None, logged: tuple[str, ...]
) -> VariableEvidence:
    others = [
        shown
        for shown in logged
        if not (row.values.means_same(value, shown) if row else value.strip() == shown)
    ]
    if others:
        return VariableEvidence(
            name, VariableState.OTHER_VALUE, f"NCCL's log says {', '.join(others)}"
        )
    return VariableEvidence(name, VariableState.EFFECTIVE, f"NCCL's log says {logged[0]}")


def _evidence_from_effect(name: str, value: str, facts: NcclFacts) -> VariableEvidence | None:
    """Return the state of a variable if its effect is logged but its name is not; else None."""
    if name == "NCCL_DEBUG":
        wanted = value.strip().upper()
        if wanted in ("INFO", "TRACE") and facts.info_lines:
            return VariableEvidence(name, VariableState.EFFECTIVE, "the log has INFO lines")
        if wanted in ("VERSION", "WARN") and facts.versions and not facts.info_lines:
            return VariableEvidence(
                name,
                VariableState.EFFECTIVE,
                "the log names the version and has no INFO lines",
            )
    if name == "NCCL_NET" and facts.networks:
        same = any(value.strip().lower() == network.lower() for network in facts.networks)
        return VariableEvidence(
            name,
            VariableState.EFFECTIVE if same else VariableState.OTHER_VALUE,
            f"NCCL uses network {', '.join(facts.networks)}",
        )
    return None


def _never_logged_reason(
    name: str, value: str, row: NcclVariable | None, env: Mapping[str, str], ranks: int
) -> str:
    """Return why NCCL's log could not name the variable, even if NCCL used it; empty if
    it could.
    """
    if ranks < 2:
        return "one GPU: NCCL has nothing to set up"
    if not value.strip():
        return "an empty value means that the variable is not set"
    if row is not None and row.never_logged:
        return "NCCL never names the variable in its log"
    if name == "NCCL_P2P_DISABLE" and value.strip() != "1":
        return "NCCL names the variable only when its value is 1"
    if name == "NCCL_P2P_LEVEL" and env.get("NCCL_P2P_DISABLE", "").strip() == "1":
        return "NCCL does not read the variable when NCCL_P2P_DISABLE is 1"
    return ""


def _no_evidence_reason(env: Mapping[str, str], facts: NcclFacts | None) -> str:
    if facts is None or not (facts.info_lines or facts.warn_lines or facts.versions):
        return "no line from NCCL was found: NCCL only logs with NCCL_DEBUG=INFO"
    if not facts.info_lines:
        return "the log has no INFO lines: it needs NCCL_DEBUG=INFO"
    if not _names_variables(env.get("NCCL_DEBUG_SUBSYS", "")) and not facts.settings:
        return "the log lacks the ENV subsystem: add it to NCCL_DEBUG_SUBSYS"
    if not facts.is_complete:
        return "the log ends before a communicator was complete"
    return ""


def _names_variables(subsystems: str) -> bool:
    if not subsystems:
        return True
    named = {word.strip().upper() for word in subsystems.removeprefix("^").split(",")} & set(
        SUBSYSTEMS
    )
    return bool(named & {"ENV", "ALL"}) != subsystems.startswith("^")


def _is_logged(row: NcclVariable, facts: NcclFacts | None) -> bool:
    """Return whether every loaded version of NCCL names the variable in its log.

    Two libraries in one process each read their own variables.
    """
    releases = [
        release
        for version in (facts.versions if facts else ())
        if (release := Release.parse(version))
    ]
    return bool(releases) and all(
        row.logged.contains(release) and row.exists.contains(release) for release in releases
    )
