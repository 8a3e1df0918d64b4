"""Owns what a server that shows NCCL's own log is given beyond its job's variables. Pure."""

from __future__ import annotations

from dataclasses import replace

from fleet_protos.trial import EngineKind, TrialSpec

# INFO alone logs INIT, BOOTSTRAP and ENV; the choice of algorithm and protocol is TUNING, transports are GRAPH and P2P's own lines.
VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"}
_FILE = "NCCL_DEBUG_FILE"  # it would keep the lines out of the server's log


def with_nccl_log(spec: TrialSpec, *, witness: bool) -> TrialSpec:
    """The trial as its server is launched: a witness logs what NCCL does, and so does the measured one when the job asks for that."""
    if spec.engine.kind is EngineKind.EXTERNAL or not (witness or spec.engine.proof == "timed"):
        return spec
    kept = {name: value for name, value in spec.engine.env.items() if name != _FILE}
    return replace(spec, engine=replace(spec.engine, env={**kept, **VARIABLES}))
