"""Files on their way from an agent: broken off at any byte they go on, and only what is whole
appears.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet_controller.hosts.agent_client import AgentClient
from fleet_protos.errors import HostUnreachable
from fleet_protos.trial_types import Artifact
from tests.fakes.agent import CHUNK, FakeAgent

CONTENT = bytes(range(256)) * 10  # two chunks and a half
FILE = Artifact("t/1/single-001.parquet", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock", files={FILE.name: CONTENT})
    await agent.up()
    yield agent
    await agent.down()


@pytest.fixture
async def client(agent: FakeAgent) -> AsyncIterator[AgentClient]:
    client = AgentClient(agent.address)
    yield client
    await client.close()


@pytest.mark.parametrize(
    "length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, len(CONTENT) - 1, len(CONTENT)]
)
async def test_a_file_broken_off_at_any_byte_goes_on_there(
    tmp_path: Path, agent: FakeAgent, client: AgentClient, length: int
) -> None:
    target = tmp_path / "there" / "single-001.parquet"
    target.parent.mkdir()
    (target.parent / "single-001.parquet.partial").write_bytes(CONTENT[:length])
    await client.fetch(FILE, target)
    assert target.read_bytes() == CONTENT
    assert agent.offsets == [length]
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    "left",
    [b"?" * 700, CONTENT + b"more than there is", b"?" * len(CONTENT)],
    ids=["wrong", "long", "all wrong"],
)
async def test_what_an_earlier_try_left_is_believed_only_when_the_whole_is_right(
    tmp_path: Path, agent: FakeAgent, client: AgentClient, left: bytes
) -> None:
    target = tmp_path / "single-001.parquet"
    (tmp_path / "single-001.parquet.partial").write_bytes(left)
    if left.startswith(b"?"):
        with pytest.raises(HostUnreachable, match="with the digest"):
            await client.fetch(FILE, target)
        assert not target.exists()
    await client.fetch(FILE, target)
    assert target.read_bytes() == CONTENT


async def test_a_file_that_changed_at_the_agent_never_appears(
    tmp_path: Path, agent: FakeAgent, client: AgentClient
) -> None:
    for changed in (CONTENT[:-1] + b"!", CONTENT[:-1], CONTENT + b"!"):
        agent.files[FILE.name] = changed
        with pytest.raises(HostUnreachable, match=r"with the digest|longer than"):
            await client.fetch(FILE, tmp_path / "x.parquet")
        assert not (tmp_path / "x.parquet").exists()
