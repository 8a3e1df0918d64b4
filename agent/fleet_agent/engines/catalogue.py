"""Owns which engine serves which kind; a plain table."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_agent.engines.engine import Engine
from fleet_agent.engines.external import ExternalEngine
from fleet_agent.engines.sglang.engine import SglangEngine
from fleet_agent.engines.simulated.engine import SimulatedEngine
from fleet_protos.trial import EngineKind

ENGINES: Mapping[EngineKind, Engine] = {
    EngineKind.SGLANG: SglangEngine(),
    EngineKind.SIMULATED: SimulatedEngine(),
    EngineKind.EXTERNAL: ExternalEngine(),
}
