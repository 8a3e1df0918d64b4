"""The values that describe one trial, generated from `v1/trial.proto`, and short answers about
them.
"""

from __future__ import annotations

from fleet_protos.v1.trial_values import (
    Artifact,
    AttachedFile,
    Container,
    EngineKind,
    EngineSpec,
    ErrorKind,
    Gang,
    Gate,
    GateEffect,
    Lengths,
    LoadPlan,
    Measure,
    Outcome,
    Part,
    Phase,
    RunResult,
    Search,
    Searched,
    SharedPrefix,
    Simulation,
    Slo,
    Stage,
    TrialSpec,
    Workload,
)

__all__ = [
    "Artifact", "AttachedFile", "Container", "EngineKind", "EngineSpec", "ErrorKind", "Gang",
    "Gate", "GateEffect", "Lengths", "LoadPlan", "Measure", "Outcome", "Part", "Phase", "RunResult",
    "Search", "Searched", "SharedPrefix", "Simulation", "Slo", "Stage", "TrialSpec", "Workload",
    "is_gang_member", "is_void",
]  # fmt: skip


def is_gang_member(gang: Gang) -> bool:
    """Return whether this host holds a part of a server that another host serves."""
    return gang.rank > 0


def is_void(run: RunResult) -> bool:
    """Return whether a gate voided the run: it is kept but never counts in a result."""
    return any(gate.effect >= GateEffect.VOID_RUN for gate in run.gates)
