"""Owns which engine serves which kind; a plain table."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_protos.trial import EngineKind

from fleet_agent.engines.engine import Engine
from fleet_agent.engines.simulated.engine import SimulatedEngine

ENGINES: Mapping[EngineKind, Engine] = {EngineKind.SIMULATED: SimulatedEngine()}
