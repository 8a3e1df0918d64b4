"""A peer with a valid certificate that opens and resets streams as fast as it can: it costs the
program neither its memory nor its answers to others.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet_transport.reset_limit import ResetCounter, ResetLimit
from fleet_transport.tls_identity import Role
from tests.contract.test_endpoints import Door, agent_door, controller_door

ATTACK_S = 3.0
MOST_MB = 40.0
SLOWEST_ANSWER_S = 5.0
PATHS = {
    Role.AGENT: "/fleet_protos.v1.AgentService/Describe",
    Role.CONTROLLER: "/fleet_protos.v1.ControllerService/ListJobs",
}


@pytest.fixture(params=["agent", "controller"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    with {"agent": agent_door, "controller": controller_door}[request.param](tmp_path) as one:
        yield one


def memory_mb(door: Door) -> float:
    """The resident memory of the program behind the door."""
    port = int(door.address.rpartition(":")[2])
    (process,) = [
        child
        for child in psutil.Process().children()
        if any(link.laddr.port == port for link in child.net_connections(kind="tcp"))
    ]
    return float(process.memory_info().rss) / 1e6


async def attacker(door: Door) -> asyncio.subprocess.Process:
    files = (door.welcome.authorities, door.welcome.certificate, door.welcome.key)
    words = (door.address, door.name, PATHS[door.role], str(ATTACK_S), *map(str, files))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.rapid_reset", *words, stdout=asyncio.subprocess.PIPE
    )


async def test_streams_that_are_reset_at_once_cost_neither_memory_nor_the_answers_to_others(
    door: Door,
) -> None:
    assert await door.ask(door.welcome) == ""
    before_mb = memory_mb(door)
    attackers = [await attacker(door) for _ in range(2)]
    slowest_s = 0.0
    while any(each.returncode is None for each in attackers):
        asked_s = time.monotonic()
        assert await door.ask(door.welcome) == ""
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
        await asyncio.sleep(0.1)
    streams = [int((await each.communicate())[0]) for each in attackers]
    grown_mb = memory_mb(door) - before_mb
    assert sum(streams) > 1000
    assert await door.ask(door.welcome) == ""
    assert (grown_mb < MOST_MB, slowest_s < SLOWEST_ANSWER_S) == (True, True)
    door.logged("opens and resets too many streams")


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_frames_are_counted_in_pieces_of_any_size(piece_bytes: int) -> None:
    reset, other = b"\0\0\4\3" + bytes(9), b"\0\0\x20\0" + bytes(5) + b"\3" * 32
    sent = b"P" * 24 + (other + reset) * 5 + other
    counter = ResetCounter(after_preface=True)
    pieces = [sent[at : at + piece_bytes] for at in range(0, len(sent), piece_bytes)]
    assert sum(map(counter.count, pieces)) == 5


def test_a_few_resets_are_always_allowed_and_many_are_allowed_again_after_a_while() -> None:
    limit = ResetLimit()
    assert all(limit.allows("ann", 10, second) for second in range(600))
    assert not limit.allows("eve", 501, 0.0)
    assert not limit.allows("eve", 51, 1.0)
    assert limit.allows("bob", 51, 1.0)
    assert limit.allows("eve", 400, 20.0)
