"""Owns the promises of the simulated engine's adapter against its real server process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_agent.engines.simulated.simulated_engine import SimulatedEngine
from fleet_protos.errors import ServerError
from fleet_protos.trial_types import EngineKind, EngineSpec, GateEffect, TrialSpec
from tests.fakes.simulated_server import TUNED, Running, free_port, simulated_server, speculative

SPEC = TrialSpec(
    "trial", engine=EngineSpec(EngineKind.SIMULATED, "demo/model", args={"tp_size": 8})
)
ENGINE = SimulatedEngine()


@contextmanager
def started(folder: Path, spec: TrialSpec, **knobs: object) -> Iterator[Running]:
    args = [
        "--tp-size",
        "8",
        *(speculative(5) if "speculative_algorithm" in spec.engine.args else []),
    ]
    with simulated_server(folder, *args, knobs=knobs, env=spec.engine.env) as running:
        yield running


async def test_a_healthy_server_is_ready_and_proves_its_configuration(tmp_path: Path) -> None:
    spec = replace(SPEC, engine=replace(SPEC.engine, env=TUNED))
    with started(tmp_path, spec) as running:
        assert await ENGINE.check_ready(spec, running.url) == ""
        proof = await ENGINE.prove_configuration(spec, running.url, running.log)
    assert proof.gates == ()
    assert proof.effective_args["tp_size"] == 8
    assert proof.versions == {"sglang": "0.5.23-simulated", "nccl": "2.27.5+cuda12.9"}
    assert {name: proof.env[name] for name in TUNED} == TUNED


async def test_a_lost_variable_voids_the_trial(tmp_path: Path) -> None:
    spec = replace(SPEC, engine=replace(SPEC.engine, env=TUNED))
    with started(tmp_path, spec, lost_env=["NCCL_PROTO"]) as running:
        gates = (await ENGINE.prove_configuration(spec, running.url, running.log)).gates
    assert [(gate.code, gate.effect) for gate in gates] == [
        ("env_not_effective", GateEffect.VOID_TRIAL)
    ]
    assert "NCCL_PROTO=LL" in gates[0].message


async def test_a_changed_argument_is_flagged_when_sglang_would_change_it(tmp_path: Path) -> None:
    args = {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 5,
        "speculative_num_draft_tokens": 16,
    }
    spec = replace(SPEC, engine=replace(SPEC.engine, args=args))
    with started(tmp_path, spec) as running:
        gates = (await ENGINE.prove_configuration(spec, running.url, running.log)).gates
    assert [(gate.code, gate.effect) for gate in gates] == [
        ("args_changed_by_server", GateEffect.FLAG)
    ]


async def test_nothing_at_the_port_is_not_ready() -> None:
    assert "nothing answers" in await ENGINE.check_ready(SPEC, f"http://127.0.0.1:{free_port()}")


async def test_a_starting_server_is_not_ready(tmp_path: Path) -> None:
    with simulated_server(tmp_path, knobs={"ready_after_s": 60}, healthy=False) as running:
        while running.health() != 503:
            assert running.process.poll() is None
        assert "503" in await ENGINE.check_ready(SPEC, running.url)


async def test_another_server_at_the_port_fails_the_launch(tmp_path: Path) -> None:
    with (
        started(tmp_path, SPEC, wrong_identity=True) as running,
        pytest.raises(ServerError) as failed,
    ):
        await ENGINE.check_ready(SPEC, running.url)
    assert failed.value.failure_class == "wrong_identity"


async def test_a_server_that_has_gone_cannot_prove_anything(tmp_path: Path) -> None:
    with pytest.raises(ServerError):
        await ENGINE.prove_configuration(
            SPEC, f"http://127.0.0.1:{free_port()}", tmp_path / "none.log"
        )
