"""Owns the promises of the guard over a launched server, with real processes: who died, how soon
that is told, and what is no death.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet_agent.core.engine import LaunchCommand
from fleet_agent.server.monitor import ServerMonitor
from fleet_agent.server.process_watch import scan_server_processes
from fleet_agent.server.supervisor import ServerProcess, Supervisor
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import EngineSpec

FAKE = Path(__file__).parents[1] / "fakes" / "many_processes.py"
TOLD_WITHIN_S, PATIENT_S, STOP_S = 1.0, 20.0, 10.0
RANKS = ("sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer")


@dataclass
class Watched:
    """A launcher with its children under guard."""

    guard: ServerMonitor
    server: ServerProcess
    fifo: Path
    pids: dict[str, int]
    told: asyncio.Queue[ev.Body] = field(default_factory=asyncio.Queue)

    async def next(self) -> ev.Body:
        async with asyncio.timeout(PATIENT_S):
            return await self.told.get()

    async def death(self) -> ev.ServerFailed:
        """The next event that is no progress."""
        while isinstance(body := await self.next(), ev.ServerProgressed):
            pass
        assert isinstance(body, ev.ServerFailed)
        return body

    def say(self, *lines: str) -> None:
        with self.server.log.open("a", encoding="utf-8") as log:
            log.writelines(f"{line}\n" for line in lines)

    async def seen(self, *pids: int) -> None:
        """Returns when the guard holds a handle of each process."""
        async with asyncio.timeout(PATIENT_S):
            while not set(pids) <= _pidfds():  # noqa: ASYNC110 - a handle is taken without an event
                await asyncio.sleep(0.01)


def _pidfds() -> set[int]:
    """Process ids of the pidfds that this process has open."""
    found = set()
    for entry in Path("/proc/self/fdinfo").iterdir():
        try:
            found |= {
                int(line.split()[1])
                for line in entry.read_text().splitlines()
                if line.startswith("Pid:")
            }
        except OSError:
            continue
    return found


async def read(fifo: Path) -> dict[str, int]:
    pids: dict[str, int] = json.loads(await asyncio.to_thread(fifo.read_text, encoding="ascii"))
    return pids


@asynccontextmanager
async def watched(
    folder: Path, *children: str, spec: EngineSpec | None = None
) -> AsyncIterator[Watched]:
    fifo = folder / "told"
    os.mkfifo(fifo)
    supervisor = Supervisor()
    command = LaunchCommand(
        (sys.executable, str(FAKE), str(fifo), *children),
        {"BENCHFLEET_LAUNCH": uuid.uuid4().hex},
        str(folder),
    )
    server = await supervisor.launch(command, folder / "server.log")
    watched = Watched(ServerMonitor(server, spec or EngineSpec()), server, fifo, await read(fifo))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watched.guard.watch(watched.told.put_nowait))
            try:
                await watched.seen(*watched.pids.values())
                yield watched
            finally:
                watched.guard.stop_reporting()
    finally:
        stopped = await supervisor.stop(server.session, STOP_S)
        assert stopped.left_over == ()


@pytest.mark.parametrize("victim", RANKS)
async def test_the_death_of_any_rank_is_told_within_a_second_though_the_launcher_hangs_on(
    tmp_path: Path, victim: str
) -> None:
    async with watched(tmp_path, *RANKS) as server:
        killed_s = time.monotonic()
        os.kill(server.pids[victim], signal.SIGKILL)
        died = await server.death()
        assert time.monotonic() - killed_s < TOLD_WITHIN_S
        assert (died.kind, died.failure_class) == (ErrorKind.SERVER_EXITED, "scheduler_died")
        assert died.rank == victim.partition("_")[2]
        assert f"{victim} (pid {server.pids[victim]})" in died.message
        assert server.server.exit_code is None


async def test_a_rank_is_named_with_all_its_coordinates(tmp_path: Path) -> None:
    async with watched(tmp_path, "sglang::scheduler_DP1_TP3_EP3") as server:
        os.kill(server.pids["sglang::scheduler_DP1_TP3_EP3"], signal.SIGKILL)
        assert (await server.death()).rank == "DP1 TP3 EP3"


async def test_a_helper_that_ends_is_no_death(tmp_path: Path) -> None:
    async with watched(tmp_path, "cc1plus", "spawned", *RANKS) as server:
        for helper in ("cc1plus", "spawned"):
            os.kill(server.pids[helper], signal.SIGKILL)
        await asyncio.to_thread(os.kill, server.pids[RANKS[0]], signal.SIGKILL)
        assert RANKS[0] in (await server.death()).message


async def test_a_server_cannot_live_without_what_bears_its_title_and_what_its_launcher_spawned(
    tmp_path: Path,
) -> None:
    async with watched(tmp_path, "cc1plus", "spawned", *RANKS) as server:
        members = {
            member.process.pid: member
            for member in await asyncio.to_thread(scan_server_processes, server.server.session)
        }
        assert {name: members[pid].is_vital for name, pid in server.pids.items()} == {
            "cc1plus": False, "spawned": True, **dict.fromkeys(RANKS, True),
        }  # fmt: skip
        assert [members[server.pids[name]].rank for name in RANKS] == ["TP0", "TP1", ""]
        assert server.server.pid not in members


async def test_a_process_that_comes_to_be_during_the_launch_is_watched_too(tmp_path: Path) -> None:
    async with watched(tmp_path, f"later:{RANKS[1]}") as server:
        os.kill(server.server.pid, signal.SIGUSR1)
        later = (await read(server.fifo))[RANKS[1]]
        await server.seen(later)
        os.kill(later, signal.SIGKILL)
        assert (await server.death()).rank == "TP1"


async def test_ranks_are_watched_after_the_server_is_ready(tmp_path: Path) -> None:
    async with watched(tmp_path, *RANKS) as server:
        await server.guard.finish_launch()
        os.kill(server.pids[RANKS[1]], signal.SIGKILL)
        assert (await server.death()).rank == "TP1"


async def test_what_we_end_ourselves_is_no_death(tmp_path: Path) -> None:
    async with watched(tmp_path, *RANKS) as server:
        server.guard.stop_reporting()
        os.kill(server.server.pid, signal.SIGUSR2)
        assert await server.server.wait() == 7
    assert all(isinstance(body, ev.ServerProgressed) for body in _all(server.told))


async def test_only_the_first_death_is_told(tmp_path: Path) -> None:
    async with watched(tmp_path, *RANKS) as server:
        os.kill(server.pids[RANKS[1]], signal.SIGKILL)
        os.kill(server.server.pid, signal.SIGUSR2)
        died = await server.death()
        await server.server.wait()
        await server.guard.wait_death_reported()
    assert RANKS[1] in died.message
    assert not [body for body in _all(server.told) if isinstance(body, ev.ServerFailed)]


async def test_the_end_of_the_launcher_is_told_with_its_exit_code(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        os.kill(server.server.pid, signal.SIGUSR2)
        died = await server.death()
        assert (died.exit_code, died.failure_class) == (7, "unknown")
        assert "server exited with 7" in died.message


async def test_a_launcher_that_crashed_without_a_word_is_told_by_its_signal(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        os.kill(server.server.pid, signal.SIGSEGV)
        died = await server.death()
        assert (died.exit_code, died.failure_class) == (-signal.SIGSEGV, "scheduler_crashed")
        assert "SIGSEGV" in died.message


async def test_what_the_log_names_is_the_cause_and_not_the_death_that_followed(
    tmp_path: Path,
) -> None:
    async with watched(tmp_path, *RANKS) as server:
        server.say(
            "[2026-01-05 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/opt/sglang/srt/model_loader/loader.py", line 1, in load_model',
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.81 GiB",
        )
        os.kill(server.pids[RANKS[0]], signal.SIGKILL)
        died = await server.death()
        assert (died.kind, died.rank) == (ErrorKind.SERVER_OOM, "TP1")
        assert "CUDA out of memory" in died.cause_line
        assert died.cause_line in died.message
        assert died.hint


async def test_what_other_ranks_say_of_a_rank_that_is_gone_is_not_the_cause(tmp_path: Path) -> None:
    async with watched(tmp_path, *RANKS) as server:
        await server.guard.finish_launch()
        server.say(
            "[2026-01-05 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
            "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26838: Connection reset by peer.",
        )
        os.kill(server.pids[RANKS[1]], signal.SIGKILL)
        died = await server.death()
        assert (died.failure_class, died.rank) == ("scheduler_died", "TP1")


async def test_a_launch_tells_its_phases_and_each_tenth_of_what_it_counts(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        assert await server.next() == ev.ServerProgressed("start")
        server.say("[2026-01-05 10:00:00] Load weight begin. avail mem=138.50 GB")
        assert await server.next() == ev.ServerProgressed("load_weight")
        for done in (1, 2, 5, 20):
            server.say(
                f"Loading safetensors checkpoint shards:  {done * 5}% Completed | {done}/20 [00:01<00:10,  1.00s/it]"
            )
        counts: list[ev.ServerProgressed] = []
        while not counts or counts[-1].done < 20:
            body = await server.next()
            assert isinstance(body, ev.ServerProgressed)
            counts.append(body)
        assert {(body.phase, body.total) for body in counts} == {("load_weight", 20)}
        phases_s = await server.guard.finish_launch()
        assert isinstance(phases_s, dict)


async def test_a_server_that_hangs_on_though_it_cannot_have_its_port_is_told(
    tmp_path: Path,
) -> None:
    async with watched(tmp_path, *RANKS) as server:
        server.say(
            "[2026-01-05 10:00:00] INFO:     Application startup complete.",
            "[2026-01-05 10:00:00] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 33905): "
            "address already in use",
            "[2026-01-05 10:00:00] INFO:     Waiting for application shutdown.",
        )
        died = await server.death()
        assert (died.kind, died.failure_class) == (ErrorKind.SERVER_LAUNCH, "port_in_use")
        assert "the server does not exit: " in died.message
        assert "address already in use" in died.cause_line


async def test_a_launch_that_stands_still_is_told_with_its_count_and_last_line(
    tmp_path: Path,
) -> None:
    spec = EngineSpec(phase_timeouts_s={"load_weight": 0.5})
    async with watched(tmp_path, spec=spec) as server:
        server.say(
            "[2026-01-05 10:00:00] Load weight begin. avail mem=138.50 GB",
            "Loading safetensors checkpoint shards:  37% Completed | 61/163 [00:01<00:10,  1.00s/it]",
        )
        died = await server.death()
        assert (died.kind, died.failure_class) == (
            ErrorKind.SERVER_UNHEALTHY,
            "stalled_load_weight",
        )
        assert "load_weight at 61/163" in died.message
        assert died.message.endswith("61/163 [00:01<00:10,  1.00s/it]")


def _all(queue: asyncio.Queue[ev.Body]) -> list[ev.Body]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
