"""Exports the values that describe one trial, and functions that answer simple questions about
these values. The values are generated from `v1/trial.proto`.
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
    """Return whether this host is a gang member: the lead on another host serves the requests."""
    return gang.rank > 0


def is_void(run: RunResult) -> bool:
    """Return whether a gate voided the run. A void run is kept but never counts in a result."""
    return any(gate.effect >= GateEffect.VOID_RUN for gate in run.gates)
