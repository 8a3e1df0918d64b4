"""Maps each kind of engine to its adapter."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_agent.core.engine import EngineAdapter
from fleet_agent.engines.external_engine import ExternalEngine
from fleet_agent.engines.sglang.sglang_engine import SglangEngine
from fleet_agent.engines.simulated.simulated_engine import SimulatedEngine
from fleet_protos.trial_types import EngineKind

ENGINES: Mapping[EngineKind, EngineAdapter] = {
    EngineKind.SGLANG: SglangEngine(),
    EngineKind.SIMULATED: SimulatedEngine(),
    EngineKind.EXTERNAL: ExternalEngine(),
}
