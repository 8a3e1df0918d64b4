"""Promises of the local agent's keeper, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from fleet_controller.app.local_agent import LocalAgent, LocalAgentConfig
from fleet_protos.errors import HostUnreachable

FAKE = str(Path(__file__).parents[1] / "fakes" / "bare_agent.py")


def place(folder: Path, *options: str, stop_timeout_s: float = 10.0) -> LocalAgentConfig:
    state = folder / "agent"
    command = (sys.executable, FAKE, *options)
    return LocalAgentConfig(state, "box", command=command, stop_timeout_s=stop_timeout_s)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_agent_answers_after_start_and_is_gone_after_stop(tmp_path: Path) -> None:
    agent = LocalAgent(place(tmp_path))
    await agent.start()
    assert os.getsid(agent.pid) == agent.pid  # a Ctrl-C on the terminal must not reach it
    assert await agent.stop() == ""
    assert not is_alive(agent.pid)


async def test_killed_agent_is_started_again(tmp_path: Path) -> None:
    agent = LocalAgent(place(tmp_path))
    await agent.start()
    first = agent.pid
    told: list[str] = []
    again = asyncio.Event()

    def tell(text: str) -> None:
        told.append(text)
        again.set()

    async with asyncio.TaskGroup() as tasks:
        keeper = tasks.create_task(agent.keep_alive(tell))
        os.kill(first, signal.SIGKILL)
        await again.wait()
        await agent.ready.wait()
        assert agent.pid != first
        assert is_alive(agent.pid)
        assert told == [f"the local agent (pid {first}) ended and is started again"]
        await agent.stop()
        await keeper
    assert not is_alive(agent.pid)


async def test_agent_of_a_killed_controller_is_taken_over_and_can_be_ended(tmp_path: Path) -> None:
    left_behind = LocalAgent(place(tmp_path))
    await left_behind.start()
    successor = LocalAgent(place(tmp_path))
    await successor.start()
    assert successor.pid == left_behind.pid
    assert await successor.stop() == ""
    await left_behind.stop()  # reaps it: here both keepers are one process
    assert not is_alive(successor.pid)


async def test_agent_that_ends_at_once_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    agent = LocalAgent(place(tmp_path, "--broken"))
    with pytest.raises(HostUnreachable, match="exit code 3") as raised:
        await agent.start()
    assert "no GPU driver here" in raised.value.message
    await agent.stop()


async def test_agent_deaf_to_term_is_killed_and_told(tmp_path: Path) -> None:
    agent = LocalAgent(place(tmp_path, "--deaf", stop_timeout_s=0.2))
    await agent.start()
    assert f"pid {agent.pid}" in await agent.stop()
    assert not is_alive(agent.pid)


async def test_socket_file_left_by_a_killed_agent_does_not_stop_a_new_one(tmp_path: Path) -> None:
    agent = LocalAgent(place(tmp_path))
    await agent.start()
    os.kill(agent.pid, signal.SIGKILL)
    await agent.stop()
    assert os.path.exists(agent.config.address.removeprefix("unix:"))  # noqa: ASYNC240 -- a look, no wait
    again = LocalAgent(place(tmp_path))
    await again.start()
    await again.stop()
