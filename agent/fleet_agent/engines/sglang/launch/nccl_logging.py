"""Owns what a server is given, beyond its job's variables, so that NCCL's own log shows what it
does. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec

# INIT and ENV are written while communicators are made and never after, so a measured launch pays
# nothing for them. TUNING is written at
# each enqueue (with CUDA graphs at their capture), GRAPH while rings are searched: those are the
# witness's, and of `proof: timed`.
_AT_START, _OF_EACH_CHOICE = "INIT,ENV", "INIT,ENV,GRAPH,TUNING"
_DEBUG = "NCCL_DEBUG"


def with_nccl_log(spec: TrialSpec, *, witness: bool, folder: str = "") -> TrialSpec:
    """The trial as its server is launched. NCCL writes to `nccl-HOST-PID.log` in `folder`; in a
    container, to the server's log.

    A job's own NCCL_DEBUG… stand, but not for a witness, which is launched for its log alone.
    `proof: off` asks for no line.
    """
    engine = spec.engine
    full_log = witness or engine.proof == "timed"
    if engine.kind is EngineKind.EXTERNAL or not (
        full_log or (engine.kind is EngineKind.SGLANG and uses_nccl(engine))
    ):
        return spec
    if not witness and (
        engine.proof == "off" or any(name.startswith(_DEBUG) for name in engine.env)
    ):
        return spec
    kept = {name: value for name, value in engine.env.items() if not name.startswith(_DEBUG)}
    log = {_DEBUG: "INFO", f"{_DEBUG}_SUBSYS": _OF_EACH_CHOICE if full_log else _AT_START}
    if folder and not engine.container.image:
        log[f"{_DEBUG}_FILE"] = f"{folder}/nccl-{'witness-' if witness else ''}%h-%p.log"
    return replace(spec, engine=replace(engine, env={**kept, **log}))


def uses_nccl(engine: EngineSpec) -> bool:
    """True for a server of two GPUs or more, on all its hosts together."""
    return engine.gpus * max(1, engine.gang.nodes) > 1
