"""Owns the comparison of the variables that a job asked for with what NCCL's log shows that it
used; decides no gate.
"""

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
    """What the log says of one variable."""

    EFFECTIVE = "effective"
    OTHER_VALUE = "other_value"  # NCCL named another value
    MISSING = "missing"  # NCCL always names it, and did not: the server does not have it
    NOT_NAMED = "not_named"  # not named, and NCCL need not have read it, or never names it
    NO_EVIDENCE = "no_evidence"  # no log that could have named it


@dataclass(frozen=True, slots=True)
class VariableEvidence:
    """One variable that was asked for, its state, and the reason in words."""

    variable: str
    state: VariableState
    detail: str


def verify_variables(
    env: Mapping[str, str], facts: NcclFacts | None, gpus: int, nodes: int = 1
) -> list[VariableEvidence]:
    """The state of every NCCL_ and RCCL_ variable of `env`, the asked ones, by name, for a server
    on `gpus` GPUs of each of `nodes` hosts.

    `facts` are those of the same launch, None when there was no log. Values are compared as NCCL
    reads them: `0x10` is 16, `4` SYS.
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
            "NCCL reads it at every start and names it then; this log does not: the server started without it",
        )
    when = f"only when {row.read_when}" if row and row.read_when else "nothing is known of when"
    return VariableEvidence(
        name,
        VariableState.NOT_NAMED,
        f"NCCL did not read it: it does {when}"
        if row and row.read_when
        else f"not named by the log; {when}",
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
    """Variables whose effect shows where their name does not."""
    if name == "NCCL_DEBUG":
        wanted = value.strip().upper()
        if wanted in ("INFO", "TRACE") and facts.info_lines:
            return VariableEvidence(name, VariableState.EFFECTIVE, "the log has INFO lines")
        if wanted in ("VERSION", "WARN") and facts.versions and not facts.info_lines:
            return VariableEvidence(
                name,
                VariableState.EFFECTIVE,
                "the log names the version, and no INFO lines are there",
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
    """Why NCCL would not name the variable, whatever it did with it; empty when it would."""
    if ranks < 2:
        return "one GPU: NCCL has nothing to set up"
    if not value.strip():
        return "an empty value is as if the variable were not set"
    if row is not None and row.never_logged:
        return "NCCL never names it in its log"
    if name == "NCCL_P2P_DISABLE" and value.strip() != "1":
        return "NCCL names it only when it is 1"
    if name == "NCCL_P2P_LEVEL" and env.get("NCCL_P2P_DISABLE", "").strip() == "1":
        return "NCCL does not read it when NCCL_P2P_DISABLE is 1"
    return ""


def _no_evidence_reason(env: Mapping[str, str], facts: NcclFacts | None) -> str:
    if facts is None or not (facts.info_lines or facts.warn_lines or facts.versions):
        return "no line of NCCL was found: it logs with NCCL_DEBUG=INFO"
    if not facts.info_lines:
        return "the log has no INFO lines: it needs NCCL_DEBUG=INFO"
    if not _names_variables(env.get("NCCL_DEBUG_SUBSYS", "")) and not facts.settings:
        return "the log leaves out the ENV part: add it to NCCL_DEBUG_SUBSYS"
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
    """Every version that is loaded names it: two libraries in one process read their variables
    each.
    """
    releases = [
        release
        for version in (facts.versions if facts else ())
        if (release := Release.parse(version))
    ]
    return bool(releases) and all(
        row.logged.contains(release) and row.exists.contains(release) for release in releases
    )
