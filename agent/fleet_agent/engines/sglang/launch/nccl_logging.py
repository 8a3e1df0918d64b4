"""Sets NCCL's logging variables for a launch, so that NCCL's own log shows what NCCL does."""

from __future__ import annotations

from dataclasses import replace

from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec

# NCCL writes INIT and ENV only while it creates communicators, so they cost a measured launch
# nothing. It writes TUNING at each enqueue (with CUDA graphs at their capture) and GRAPH while it
# searches rings: only a witness and `proof: timed` get those.
_AT_START, _OF_EACH_CHOICE = "INIT,ENV", "INIT,ENV,GRAPH,TUNING"
_DEBUG = "NCCL_DEBUG"


def with_nccl_log(spec: TrialSpec, *, witness: bool, folder: str = "") -> TrialSpec:
    """Return the trial with the NCCL_DEBUG… variables that its server is launched with.

    NCCL writes to `nccl-HOST-PID.log` in `folder`. In a container it writes to the server's log.
    NCCL_DEBUG… variables of the job take precedence, except in a witness, which is launched only
    for NCCL's log. With `proof: off` no variable is added.
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
    env = {name: value for name, value in engine.env.items() if not name.startswith(_DEBUG)}
    env[_DEBUG] = "INFO"
    env[f"{_DEBUG}_SUBSYS"] = _OF_EACH_CHOICE if full_log else _AT_START
    if folder and not engine.container.image:
        env[f"{_DEBUG}_FILE"] = f"{folder}/nccl-{'witness-' if witness else ''}%h-%p.log"
    return replace(spec, engine=replace(engine, env=env))


def uses_nccl(engine: EngineSpec) -> bool:
    """Return whether the server has at least two GPUs on all its hosts together."""
    return engine.gpus * max(1, engine.gang.nodes) > 1
