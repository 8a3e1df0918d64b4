"""The store of a running controller is removed, moved, replaced or damaged: nothing more is
acknowledged, one message says so, and the controller ends.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from fleet_controller.store.store import Store
from fleet_controller.store.writer_lock import ADVISORY_KEY
from fleet_protos.errors import ConfigError
from tests.fakes.agent import FakeAgent, run_of
from tests.fakes.controller_daemon import Daemon, daemon
from tests.fakes.looks import eventually
from tests.fakes.postgres import run_postgres

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 1}
"""


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock", agent_id=uuid.uuid4().hex, by_itself=False)
    await agent.up()
    yield agent
    await agent.down()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with run_postgres() as address:
        if not address:
            pytest.skip("NOT RUN: no PostgreSQL server is installed here (make setup names it)")
        yield address


def checkpoint(store: Path) -> None:
    """Move everything from the -wal file into the store, as a backup program may do."""
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("pragma wal_checkpoint(full)")


@asynccontextmanager
async def measuring(state: Path, agent: FakeAgent, *flags: str) -> AsyncIterator[Daemon]:
    """A controller with a job whose first events are stored and acknowledged."""
    async with daemon(state, "--agent", agent.address, *flags) as controller:
        await controller.serving()
        async with controller.remote() as remote:
            await remote.submit(JOB, "job.yaml")
        await all_acknowledged(agent)
        agent.tell(agent.started[0], run_of(agent.started[0], 1))
        await all_acknowledged(agent)
        yield controller


async def all_acknowledged(agent: FakeAgent) -> None:
    """Return when every event that the agent reported is acknowledged."""

    async def look() -> bool:
        return 0 < agent.acknowledged == len(agent.journal)

    await eventually(look, lambda done: done)


def finish(agent: FakeAgent) -> None:
    """Report two more runs and the end of the trial."""
    (spec,) = agent.started
    for index in (2, 3):
        agent.tell(spec, run_of(spec, index))
    agent.end(spec)


def replace_by_copy(store: Path) -> None:
    shutil.copy(store, store.with_name("copy"))
    store.with_name("copy").rename(store)


def overwrite_with_another_store(store: Path) -> None:
    other = store.with_name("other.sqlite3")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table letters (text)")
        connection.executemany("insert into letters values (?)", [("dear aunt",)] * 20_000)
        connection.commit()
    store.write_bytes(other.read_bytes())


def damage_pages(store: Path) -> None:
    with store.open("r+b") as file:
        for page in range(2, store.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)


def truncate(store: Path) -> None:
    with store.open("r+b") as file:
        file.truncate(4096)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (lambda store: store.unlink(), "store.sqlite3 was removed"),
    "moved": (lambda store: store.rename(store.with_name("x")), "store.sqlite3 was removed"),
    "replaced": (replace_by_copy, "store.sqlite3 was replaced by another file"),
    "wal_removed": (
        lambda store: Path(f"{store}-wal").unlink(),
        "store.sqlite3-wal was removed",
    ),
    "lock_removed": (
        lambda store: Path(f"{store}.lock").unlink(),
        "store.sqlite3.lock was removed",
    ),
    "folder_lock_removed": (
        lambda store: (store.parent / "controller.lock").unlink(),
        "controller.lock was removed",
    ),
    "folder_moved": (
        lambda store: store.parent.rename(store.parent.with_name("elsewhere")),
        "was removed",
    ),
    "overwritten": (overwrite_with_another_store, "is damaged"),
    "pages_damaged": (damage_pages, "is damaged"),
    "truncated": (truncate, "is damaged"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_controller_whose_store_is_lost_acknowledges_nothing_more_says_why_and_ends(
    tmp_path: Path, agent: FakeAgent, fault: str
) -> None:
    strike, message = FAULTS[fault]
    store = tmp_path / "state" / "store.sqlite3"
    async with measuring(tmp_path / "state", agent) as controller:
        checkpoint(store)
        stored = agent.acknowledged
        strike(store)
        finish(agent)
        code, said = await controller.ended()
    assert agent.acknowledged == stored
    assert code != 0
    assert "Traceback" not in said
    last = said[said.index("fleet-controller: the store ") :].splitlines()
    assert message in last[0]
    assert "backup" in last[1]
    assert (".recover" in last[1]) == (message == "is damaged")


async def test_a_lost_store_is_noticed_while_nothing_is_reported(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with measuring(tmp_path / "state", agent) as controller:
        (tmp_path / "state" / "store.sqlite3").unlink()
        code, _ = await controller.ended()
    assert code != 0


async def test_of_two_controllers_on_one_store_only_the_newer_goes_on_when_the_lock_was_removed(
    tmp_path: Path, agent: FakeAgent
) -> None:
    store = tmp_path / "state" / "store.sqlite3"
    async with measuring(tmp_path / "state", agent) as first:
        FAULTS["lock_removed"][0](store)
        flags = ("--agent", agent.address, "--store", str(store))
        async with daemon(tmp_path / "other", *flags) as second:
            await second.serving()
            finish(agent)
            code, said = await first.ended()
            async with second.remote() as remote:
                (job,) = await eventually(remote.jobs, lambda jobs: jobs[0].state == "done")
                runs = (await remote.results(job.job_id)).runs
    assert (code, "Traceback" in said) == (2, False)
    assert [run.run.index for run in runs] == [1, 2, 3]


async def test_a_program_that_copies_the_events_into_the_store_does_not_end_the_controller(
    tmp_path: Path, agent: FakeAgent
) -> None:
    store = tmp_path / "state" / "store.sqlite3"
    async with measuring(tmp_path / "state", agent) as controller:
        checkpoint(store)
        finish(agent)
        await all_acknowledged(agent)
        checkpoint(store)
        async with controller.remote() as remote:
            await eventually(remote.jobs, lambda jobs: jobs[0].state == "done")
        assert controller.process.returncode is None


async def test_a_store_that_is_gone_is_not_silently_begun_anew(
    tmp_path: Path, agent: FakeAgent
) -> None:
    state = tmp_path / "state"
    async with measuring(state, agent) as controller:
        (state / "store.sqlite3").rename(tmp_path / "moved")
        await controller.ended()
    for _ in range(2):
        async with daemon(state, "--agent", agent.address) as again:
            code, said = await again.ended()
        assert (code, "Traceback" in said, (state / "store.sqlite3").exists()) == (2, False, False)
        assert "fleet-controller: the store" in said
        assert "is gone" in said
        assert "store.sqlite3.lock" in said
    with pytest.raises(ConfigError, match="is gone"):
        Store.open(str(state / "store.sqlite3"), read_only=True)
    (tmp_path / "moved").rename(state / "store.sqlite3")
    async with daemon(state, "--agent", agent.address) as again:
        await again.serving()
        finish(agent)
        async with again.remote() as remote:
            (job,) = await eventually(remote.jobs, lambda jobs: jobs[0].state == "done")
            assert [run.run.index for run in (await remote.results(job.job_id)).runs] == [1, 2, 3]


async def test_a_damaged_store_is_one_message_at_the_start(
    tmp_path: Path, agent: FakeAgent
) -> None:
    state = tmp_path / "state"
    async with measuring(state, agent) as controller:
        controller.process.terminate()
        await controller.ended()
    damage_pages(state / "store.sqlite3")
    async with daemon(state, "--agent", agent.address) as again:
        code, said = await again.ended()
    assert code == 2
    assert "Traceback" not in said
    message, hint = said[said.index("fleet-controller: the store ") :].splitlines()
    assert "is damaged" in message
    assert ".recover" in hint
    assert "backup" in hint


async def test_a_lost_advisory_lock_is_taken_again_and_nothing_is_lost(
    tmp_path: Path, agent: FakeAgent, postgres: str
) -> None:
    async with measuring(tmp_path / "state", agent, "--store", postgres) as controller:
        await end_lock_session(postgres)
        await eventually(lambda: locks(postgres), lambda held: held == 1)
        finish(agent)
        await all_acknowledged(agent)
        async with controller.remote() as remote:
            await eventually(remote.jobs, lambda jobs: jobs[0].state == "done")
        controller.process.terminate()
        code, said = await controller.ended()
    assert (code, "lost the lock of the store" in said, "Traceback" in said) == (0, True, False)


async def test_a_controller_whose_advisory_lock_another_one_took_ends(
    tmp_path: Path, agent: FakeAgent, postgres: str
) -> None:
    async with measuring(tmp_path / "state", agent, "--store", postgres) as controller:
        stored = agent.acknowledged
        engine = create_engine(postgres, isolation_level="AUTOCOMMIT")
        with engine.connect() as other:
            take = text("select pg_advisory_lock(:key)")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.to_thread(other.execute, take, {"key": ADVISORY_KEY}))
                await eventually(lambda: locks(postgres, granted=False), lambda found: found == 1)
                await end_lock_session(postgres)
            finish(agent)
            code, said = await controller.ended()
        engine.dispose()
    assert (code, agent.acknowledged) == (2, stored)
    assert "fleet-controller: another controller uses the store" in said
    assert "Traceback" not in said


HOLDERS = "select pid from pg_locks where locktype = 'advisory' and granted = :granted"


async def locks(address: str, granted: bool = True) -> int:
    """How many sessions hold the lock, or wait for it."""
    return len(await asked(address, HOLDERS, granted=granted))


async def end_lock_session(address: str) -> None:
    """End the session that holds the lock, as a failover or a firewall does."""
    end = f"select pg_terminate_backend(pid) from ({HOLDERS}) as holders"
    assert len(await asked(address, end, granted=True)) == 1


async def asked(address: str, query: str, **values: object) -> Sequence[object]:
    def ask() -> Sequence[object]:
        engine = create_engine(address, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            rows = connection.execute(text(query), values).all()
        engine.dispose()
        return rows

    return await asyncio.to_thread(ask)
