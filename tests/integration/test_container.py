"""Promises of a server in a container, on a real runtime: launched by the agent's own words, found,
stopped, and nothing is left of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet_agent.core.engine import EngineAdapter, LaunchCommand, LaunchPlace
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.host.processes import members_of
from fleet_agent.server.launch_setup import clean_up_launch, prepare_command
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import ServerProcess, Supervisor
from fleet_agent.storage.secrets import Secrets
from fleet_protos.events import ServerStopped
from fleet_protos.trial_types import Container, EngineKind, EngineSpec, TrialSpec
from tests.fakes.containers import IMAGE, Podman, host_mounts, working_podman

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "tests/fakes/image", *(ROOT / name for name in ("agent", "protos", "knowledge"))]
SECRETS = Secrets({"hub": "hf_value-of-the-secret"})
READY_S = 60.0


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    found = working_podman(tmp_path_factory.mktemp("podman"))
    if isinstance(found, str):
        pytest.skip(f"NOT RUN: no container was launched. {found}")
    before = {name: os.environ.get(name) for name in found.variables}
    os.environ.update(found.variables)
    yield found
    left = found.containers()
    for container in left:
        found.say("rm", "--force", container)
    found.say("rmi", "--force", IMAGE)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    assert left == []


class Bench:
    """One launch in a container, as an agent does it."""

    def __init__(self, folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "server").mkdir()
        self.engine: EngineAdapter = ENGINES[EngineKind.SGLANG]
        self.supervisor = Supervisor()
        self.place = LaunchPlace(
            Ports().allocate(folder.name), (), folder / "server", f"{folder.name}/1"
        )
        self.log = folder / "server.log"
        engine = EngineSpec(
            EngineKind.SGLANG,
            str(folder / "model"),
            args={"device": "cpu"},
            env={"PYTHONPATH": ":".join(map(str, PACKAGES)), "HF_TOKEN": "secret://hub"},
            container=Container(
                image=IMAGE, runtime="podman", mounts=host_mounts(), python=sys.executable
            ),
            stop_timeout_s=60.0,
        )
        self.spec = TrialSpec(trial_id=folder.name, variant="v", engine=engine)

    async def launch(self) -> tuple[LaunchCommand, ServerProcess]:
        """The server, once it is ready and completed a request."""
        command = self.engine.launch_command(self.spec, self.place)
        server = await self.supervisor.launch(prepare_command(command, SECRETS), self.log)
        url = self.engine.url(self.spec, self.place)
        async with asyncio.timeout(READY_S):
            while missing := await self.engine.check_ready(self.spec, url):
                assert "nothing answers" in missing or "503" in missing, missing
                await asyncio.wait([asyncio.ensure_future(server.wait())], timeout=0.1)
        return command, server

    async def stop(self, server: ServerProcess) -> ServerStopped:
        stopped = await self.supervisor.stop(server.session, self.spec.engine.stop_timeout_s)
        return await clean_up_launch(stopped, self.spec.engine, self.place, SECRETS)


@pytest.fixture
def bench(podman: Podman, tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_server_is_launched_found_and_stopped_and_nothing_is_left(
    bench: Bench, podman: Podman
) -> None:
    _, server = await bench.launch()
    assert len(podman.containers()) == 1
    names = {process.name for process in members_of(server.session)}
    assert "podman" in names and any("python" in name for name in names), (
        "the processes inside are seen too"
    )
    stopped = await bench.stop(server)
    assert (stopped.ended_by, stopped.left_over) == ("term", ())
    assert podman.containers() == []
    assert members_of(server.session) == ()
    assert sorted(bench.place.folder.iterdir()) == []


async def test_the_server_has_its_environment_and_the_host_has_no_trace_of_the_secret(
    bench: Bench,
) -> None:
    command, server = await bench.launch()
    raw = bench.log.read_text()
    assert "environment: HF_TOKEN=hf_value-of-the-secret\n" in raw
    assert "environment: CUDA_VISIBLE_DEVICES=\n" in raw
    assert not any(
        name in raw
        for name in ("environment: BENCHFLEET_TEST_SESSION=", "environment: CONTAINERS_CONF=")
    )
    assert os.stat(command.env_file).st_mode & 0o777 == 0o600
    assert not any(
        "hf_value" in " ".join(psutil.Process(process.pid).cmdline())
        for process in members_of(server.session)
    )
    await bench.stop(server)
    assert "environment: HF_TOKEN=secret://hub\n" in bench.log.read_text()
    assert [
        path
        for path in bench.log.parent.rglob("*")
        if path.is_file() and b"hf_value" in path.read_bytes()
    ] == []


async def test_the_image_that_ran_is_proved_by_its_id(bench: Bench, podman: Podman) -> None:
    _, server = await bench.launch()
    proved = await bench.engine.prove_configuration(
        bench.spec, bench.engine.url(bench.spec, bench.place), bench.log
    )
    await bench.stop(server)
    assert (
        proved.versions["image"]
        == podman.say("image", "inspect", "--format", "{{.Id}}", IMAGE).strip()
    )


async def test_a_container_whose_client_was_killed_is_ended_all_the_same(
    bench: Bench, podman: Podman
) -> None:
    _, server = await bench.launch()
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    assert len(podman.containers()) == 1
    stopped = await bench.stop(server)
    assert stopped.left_over == ()
    assert podman.containers() == []


async def test_a_container_that_only_the_runtime_knows_is_ended_by_its_label(
    bench: Bench, podman: Podman
) -> None:
    _, server = await bench.launch()
    (id_file,) = bench.place.folder.glob("*.cid")
    id_file.write_text("")  # the agent was killed before the runtime wrote it
    await clean_up_launch(ServerStopped(), bench.spec.engine, bench.place, SECRETS)
    assert podman.containers() == []
    assert (await bench.supervisor.stop(server.session, 5.0)).left_over == ()


async def test_a_container_of_somebody_else_is_left_alone(bench: Bench, podman: Podman) -> None:
    theirs = podman.say(
        "create", "--label", "benchfleet.launch=other/1", "--entrypoint", "/bin/true", IMAGE
    ).strip()
    _, server = await bench.launch()
    await bench.stop(server)
    assert podman.containers() == [theirs]
    podman.say("rm", theirs)
