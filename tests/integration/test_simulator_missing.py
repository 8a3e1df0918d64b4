"""An agent that cannot run simulated servers: it reports no simulated GPUs and refuses their
trials.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleet_agent.app.bootstrap import AgentParts, build_agent
from fleet_agent.app.config import AgentConfig
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec

SPEC = TrialSpec(
    trial_id="job-b1-v0",
    attempt=1,
    variant="v",
    engine=EngineSpec(EngineKind.SIMULATED, "sim/model"),
)


@asynccontextmanager
async def built(state: Path, simulated_gpus: int) -> AsyncIterator[AgentParts]:
    config = AgentConfig(host="here", state=state, gpus=0, simulated_gpus=simulated_gpus)
    parts = await build_agent(config)
    try:
        yield parts
    finally:
        await parts.server.stop(grace=None)
        parts.journal.close()


async def test_without_simulated_gpus_a_simulated_trial_is_refused(tmp_path: Path) -> None:
    async with built(tmp_path, 0) as parts:
        with pytest.raises(ConfigError, match="this host runs no simulated servers") as refused:
            parts.agent.start(SPEC)
    assert "set simulated_gpus" in refused.value.hint


async def test_without_the_package_a_simulated_trial_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fleet_simulator", None)
    async with built(tmp_path, 8) as parts:
        with pytest.raises(ConfigError, match="this host runs no simulated servers") as refused:
            parts.agent.start(SPEC)
    assert "benchfleet[simulator]" in refused.value.hint
