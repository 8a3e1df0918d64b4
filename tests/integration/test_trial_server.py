"""Owns the promises of a trial's server at its launch, with real processes: another server at its
port, and a witness before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.host.port_owner import foreign_listener
from fleet_agent.host.processes import ProcessStat, read_stat
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialServer, TrialTools
from fleet_protos import events as ev
from fleet_protos.trial_types import EngineKind, EngineSpec, Simulation, TrialSpec
from tests.fakes.simulated_server import simulated_server

READY_S = 30.0


class Told:
    """What a server tells while it is watched."""

    def __init__(self) -> None:
        self.bodies: list[ev.Body] = []
        self._failed = asyncio.Event()

    def __call__(self, body: ev.Body) -> None:
        self.bodies.append(body)
        if isinstance(body, ev.ServerFailed):
            self._failed.set()

    async def failure(self) -> ev.ServerFailed:
        """The first."""
        async with asyncio.timeout(READY_S):
            await self._failed.wait()
        return next(body for body in self.bodies if isinstance(body, ev.ServerFailed))


def spec(ready_after_s: float = 0.0) -> TrialSpec:
    simulation = Simulation(time_scale=100.0, ready_after_s=ready_after_s)
    engine = EngineSpec(
        EngineKind.SIMULATED, "demo/model", ready_timeout_s=READY_S, simulation=simulation
    )
    return TrialSpec("t", engine=engine)


def trial_server(trial: TrialSpec, folder: Path) -> TrialServer:
    return TrialServer(trial, TrialTools(Supervisor(), LoadProcess(), Ports(), ENGINES), (), folder)


@asynccontextmanager
async def launched(
    trial: TrialSpec, folder: Path, announce: Callable[[ev.Body], None]
) -> AsyncIterator[tuple[TrialServer, Told]]:
    """The server of a trial, launched and watched; nothing of it is left at the end."""
    server, told = trial_server(trial, folder), Told()
    async with asyncio.TaskGroup() as tasks:
        try:
            body = await server.launch(announce)
            assert isinstance(body, ev.ServerLaunched), body
            server.watch(tasks, told)
            yield server, told
        finally:
            assert (await server.stop()).left_over == ()
            server.release_port()


async def test_another_server_of_the_same_model_at_the_port_is_never_taken_for_ours(
    tmp_path: Path,
) -> None:
    """It takes the port when preflight has just found it free."""
    with ExitStack() as others:

        def be_quicker(body: ev.Body) -> None:
            assert isinstance(body, ev.ServerLaunching)
            others.enter_context(simulated_server(tmp_path, port=body.port))

        async with launched(spec(), tmp_path / "trial", be_quicker) as (server, told):
            ready = await server.await_ready(time.monotonic() + READY_S)
            failed = ready if isinstance(ready, ev.ServerFailed) else await told.failure()
            assert not isinstance(ready, ev.ServerReady)
            assert failed.failure_class in ("port_in_use", "wrong_identity")


async def test_who_listens_at_a_port_is_seen_by_its_process(tmp_path: Path) -> None:
    with simulated_server(tmp_path) as first, simulated_server(tmp_path) as second:
        ours, other = read_stat(first.process.pid), read_stat(second.process.pid)
        assert isinstance(ours, ProcessStat)
        assert isinstance(other, ProcessStat)
        assert await asyncio.to_thread(foreign_listener, first.port, [ours]) == ""
        assert (await asyncio.to_thread(foreign_listener, second.port, [ours])).startswith(
            f"pid {other.pid} ("
        )
        assert await asyncio.to_thread(foreign_listener, second.port, [ours, other]) == ""
    assert await asyncio.to_thread(foreign_listener, second.port, [ours]) == ""


async def test_each_launch_of_a_trial_has_a_log_of_its_own_and_says_which_it_is(
    tmp_path: Path,
) -> None:
    server, announced = trial_server(replace(spec(), witness=True), tmp_path), list[ev.Body]()
    for witness, log in ((True, "witness.log"), (False, "server.log")):
        body = await server.launch(announced.append, witness)
        assert isinstance(body, ev.ServerLaunched)
        assert body.log_path == str(tmp_path / log)
        assert isinstance(await server.await_ready(time.monotonic() + READY_S), ev.ServerReady)
        proved = await server.prove()
        assert isinstance(proved, ev.ConfigurationProved)
        assert proved.witness is witness
        assert (await server.stop()).left_over == ()
    server.release_port()
    assert [body.witness for body in announced if isinstance(body, ev.ServerLaunching)] == [
        True,
        False,
    ]
    assert (tmp_path / "witness.log").stat().st_size > 0


async def test_a_server_that_never_comes_on_ends_by_the_limit_of_its_phase(tmp_path: Path) -> None:
    trial = spec(ready_after_s=60.0)
    trial = replace(
        trial, engine=replace(trial.engine, phase_timeouts_s={"start": 0.5, "http_bind": 0.5})
    )
    async with launched(trial, tmp_path, lambda body: None) as (_, told):
        assert (await told.failure()).failure_class in ("stalled_start", "stalled_http_bind")
