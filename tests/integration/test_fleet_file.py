"""A controller with a fleet file: hosts known before contact, jobs that wait for them, hosts that
come, go and change while it works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import HostStatus, JobDetail
from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.hosts.target_access import fleet_targets
from fleet_controller.hosts.targets import FleetTargets, HostAccess, targets_of, without_tls
from fleet_controller.yaml.findings import JobRejected
from fleet_protos.errors import ConfigError, HostUnreachable
from tests.fakes.agent import FakeAgent

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 1}
"""
NAMED = JOB + "hosts:\n  names: [a, c]\n"
A, B = (
    FleetHost(name="a", address="192.0.2.1", simulated_gpus=8),
    FleetHost(name="b", address="192.0.2.2", simulated_gpus=8),
)
LIMIT_S = 20.0


class Roads:
    """Where each host's agent is: the end of a way that tests can move or cut."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.turns = 0

    def address(self, host: str) -> str:
        return f"unix:{self.folder}/{host}{self.turns}.sock"

    async def reach(self, host: FleetHost) -> str:
        return self.address(host.name)

    def agent(self, host: str, calls_itself: str = "", **settings: object) -> FakeAgent:
        return FakeAgent(self.address(host), calls_itself or host, f"agent-{host}", **settings)  # type: ignore[arg-type] # its fields


@pytest.fixture
def roads(tmp_path: Path) -> Roads:
    return Roads(tmp_path)


@asynccontextmanager
async def up(*agents: FakeAgent) -> AsyncIterator[None]:
    for agent in agents:
        await agent.up()
    try:
        yield
    finally:
        for agent in agents:
            await agent.down()


@asynccontextmanager
async def controller(roads: Roads, *hosts: FleetHost) -> AsyncIterator[FleetController]:
    follow = FleetTargets(targets_of((), Inventory(hosts)), HostAccess(roads.reach, without_tls))
    async with start_controller(roads.folder / "controller", follow) as here:
        yield here.fleet


async def until(
    fleet: FleetController, wanted: Callable[[Sequence[HostStatus]], bool]
) -> Sequence[HostStatus]:
    """The hosts as soon as they are as wanted."""
    async with asyncio.timeout(LIMIT_S):
        while not wanted(hosts := await fleet.hosts()):  # noqa: ASYNC110 -- hosts are asked for, nothing tells of them
            await asyncio.sleep(0.02)
    return hosts


async def done(fleet: FleetController, job_id: str) -> JobDetail:
    async with asyncio.timeout(LIMIT_S):
        async for _ in fleet.watch(job_id):
            pass
    return await fleet.job(job_id)


def connected(*names: str) -> Callable[[Sequence[HostStatus]], bool]:
    return lambda hosts: {host.host for host in hosts if host.state == "connected"} == set(names)


async def test_a_host_is_listed_as_the_file_knows_it_before_its_agent_answers(roads: Roads) -> None:
    known = replace(A, labels={"gpu": "h200"}, gpus=8, cost_per_hour=40.0, load_only=True)
    async with controller(roads, known) as fleet:
        (host,) = await until(fleet, lambda hosts: hosts[0].message != "no answer yet")
    assert (host.host, host.address, host.state) == ("a", "192.0.2.1:7433", "unreachable")
    assert (host.labels, host.gpus, host.simulated_gpus, host.cost_per_hour, host.load_only) == (
        {"gpu": "h200"},
        8,
        8,
        40.0,
        True,
    )
    assert host.message


async def test_trials_wait_for_a_host_of_the_file_that_does_not_answer_yet(roads: Roads) -> None:
    late = roads.agent("b")
    async with up(roads.agent("a")), controller(roads, A, B) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        assert {trial.host for trial in (await fleet.job(job_id)).trials} == {"a", "b"}
        async with up(late):
            detail = await done(fleet, job_id)
    assert (detail.job.state, len(late.started)) == ("done", 2)


async def test_only_connected_leaves_hosts_out_that_do_not_answer(roads: Roads) -> None:
    async with up(roads.agent("a")), controller(roads, A, B) as fleet:
        await until(fleet, connected("a"))
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml", only_connected=True))
    assert (detail.job.state, {trial.host for trial in detail.trials}) == ("done", {"a"})


async def test_a_name_that_no_host_has_is_told_at_its_line(roads: Roads) -> None:
    async with up(roads.agent("a")), controller(roads, A, B) as fleet:
        with pytest.raises(JobRejected) as rejected:
            await fleet.submit(NAMED, "job.yaml")
    (finding,) = rejected.value.findings
    assert (finding.code, finding.file, finding.line, finding.column) == (
        "unknown_host",
        "job.yaml",
        11,
        14,
    )


async def test_an_agent_that_calls_itself_otherwise_than_the_file_is_refused_with_the_reason(
    roads: Roads,
) -> None:
    stranger = roads.agent("a", calls_itself="z")
    async with up(stranger, roads.agent("b")), controller(roads, A, B) as fleet:
        await until(
            fleet,
            lambda hosts: "calls itself z" in hosts[0].message and hosts[1].state == "connected",
        )
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml", only_connected=True))
    assert ({trial.host for trial in detail.trials}, stranger.started) == ({"b"}, [])


async def test_the_file_wins_over_the_agents_labels_and_the_difference_is_told_once(
    roads: Roads, caplog: pytest.LogCaptureFixture
) -> None:
    agent = roads.agent("a", labels={"gpu": "a100", "own": "x"})
    with caplog.at_level(logging.WARNING):
        async with controller(roads, replace(A, labels={"gpu": "h200"})) as fleet:
            for _ in range(2):
                async with up(agent):
                    (host,) = await until(fleet, connected("a"))
                await until(fleet, connected())
    assert host.labels == {"gpu": "h200", "own": "x"}
    assert [message for message in caplog.messages if "label" in message] == [
        "a: label gpu is a100 for the agent and h200 in the fleet file; the value of the fleet file is used"
    ]


async def test_a_host_for_load_alone_gets_no_trials(roads: Roads) -> None:
    lender = roads.agent("b")
    async with (
        up(roads.agent("a"), lender),
        controller(roads, A, replace(B, load_only=True)) as fleet,
    ):
        await until(fleet, connected("a", "b"))
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml"))
    assert ({trial.host for trial in detail.trials}, lender.started) == ({"a"}, [])


async def test_a_job_gets_no_more_gpus_than_the_file_says(roads: Roads) -> None:
    async with up(roads.agent("a")), controller(roads, replace(A, simulated_gpus=4)) as fleet:
        with pytest.raises(ConfigError, match="needs 8 GPUs, but host a has 4"):
            await fleet.submit(JOB, "job.yaml")


async def test_a_way_that_ends_elsewhere_is_taken_at_the_next_connection(roads: Roads) -> None:
    async with controller(roads, A) as fleet:
        async with up(roads.agent("a")):
            await until(fleet, connected("a"))
        roads.turns += 1
        async with up(roads.agent("a")):
            await until(fleet, connected("a"))


async def test_a_way_that_cannot_be_made_is_told(roads: Roads) -> None:
    async def blocked(host: FleetHost) -> str:
        raise HostUnreachable(f"ssh to {host.name}: no route")

    follow = FleetTargets(targets_of((), Inventory((A,))), HostAccess(blocked, without_tls))
    async with start_controller(roads.folder / "controller", follow) as here:
        (host,) = await until(here.fleet, lambda hosts: hosts[0].message != "no answer yet")
    assert host.message == "ssh to a: no route"


async def test_a_host_that_is_new_in_the_file_is_followed(roads: Roads) -> None:
    async with up(roads.agent("a"), roads.agent("b")), controller(roads, A) as fleet:
        await until(fleet, connected("a"))
        await fleet.apply_inventory(Inventory((A, B)))
        await until(fleet, connected("a", "b"))
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml"))
    assert (detail.job.state, {trial.host for trial in detail.trials}) == ("done", {"a", "b"})


async def test_a_host_that_leaves_the_file_ends_what_it_runs_and_what_waits_for_it_fails(
    roads: Roads,
) -> None:
    leaving = roads.agent("b", by_itself=False)
    async with up(roads.agent("a"), leaving), controller(roads, A, B) as fleet:
        await until(fleet, connected("a", "b"))
        job_id = await fleet.submit(JOB, "job.yaml")
        async with asyncio.timeout(LIMIT_S):
            async for _ in fleet.watch(job_id):
                if leaving.started:
                    break
        await fleet.apply_inventory(Inventory((A,)))
        assert [host.host for host in await fleet.hosts()] == ["a", "b"]
        leaving.end(leaving.started[0])
        detail = await done(fleet, job_id)
        assert [host.host for host in await fleet.hosts()] == ["a"]
    ends = sorted((trial.host, trial.outcome.name, trial.failure_class) for trial in detail.trials)
    assert ends == [
        ("a", "OK", ""),
        ("a", "OK", ""),
        ("b", "FAILED", "host_removed"),
        ("b", "OK", ""),
    ]
    assert len(leaving.started) == 1


async def test_a_label_that_changes_in_the_file_holds_at_once(roads: Roads) -> None:
    async with up(roads.agent("a")), controller(roads, A) as fleet:
        await until(fleet, connected("a"))
        await fleet.apply_inventory(Inventory((replace(A, labels={"gpu": "h200"}),)))
        (host,) = await fleet.hosts()
    assert (host.state, host.labels) == ("connected", {"gpu": "h200"})


FILE = "apiVersion: benchfleet/v1\nkind: Fleet\nhosts:\n  - {{name: a, address: 127.0.0.1, agent_port: 1, labels: {{x: {x}}}}}\n"


async def test_the_file_is_read_again_when_it_changes_and_a_broken_one_changes_nothing(
    roads: Roads, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE.format(x="old"))
    inventory = Inventory((replace(A, address="127.0.0.1", port=1),), file=str(file))
    said: list[str] = []
    heard = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    async with start_controller(
        roads.folder / "controller", fleet_targets((), inventory, tmp_path / "trust")
    ) as here:
        assert here.fleet_file is not None
        here.fleet_file.report = say
        for text in ("hosts: [\n", FILE.format(x="new")):
            file.write_text(text)
            here.fleet_file.read_now()
            async with asyncio.timeout(LIMIT_S):
                await heard.wait()
            heard.clear()
        (host,) = await here.fleet.hosts()
    assert (["is not used" in text for text in said], host.labels) == ([True, False], {"x": "new"})


def test_hosts_on_other_machines_need_an_authority(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="need TLS, but there is no certificate authority"):
        fleet_targets((), Inventory((A,), file="fleet.yaml"), tmp_path / "trust")
