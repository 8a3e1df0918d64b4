"""Owns the promises of the supervisor, with real processes that behave badly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.core.engine import LaunchCommand
from fleet_agent.host.processes import (
    ProcessStat,
    RecordedSession,
    boot_id,
    is_of_another_boot,
    members_of,
    parse_stat,
    processes_of_session,
    read_stat,
)
from fleet_agent.server.supervisor import ServerProcess, Supervisor, wait_gone

FAKES = Path(__file__).parents[1] / "fakes"
ODD_SERVER = (sys.executable, str(FAKES / "odd_server.py"))
PATIENT_S, SHORT_S = 20.0, 0.3


@dataclass
class Bench:
    """A supervisor, a folder, and whatever a failed test would leave behind."""

    folder: Path
    supervisor: Supervisor = field(default_factory=Supervisor)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    pids: list[int] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "server" / "server.log"

    async def launch(self, *traits: str) -> tuple[ServerProcess, list[int]]:
        """The server and its processes, once all of them run."""
        fifo = self.fifo()
        env = {"BENCHFLEET_LAUNCH": self.token, "NCCL_ALGO": "Ring"}
        server = await self.supervisor.launch(
            LaunchCommand((*ODD_SERVER, str(fifo), *traits), env, str(self.folder)), self.log
        )
        return server, (await self.told(fifo))["pids"]

    def fifo(self) -> Path:
        fifo = self.folder / f"told-{uuid.uuid4().hex}"
        os.mkfifo(fifo)
        os.mkfifo(f"{fifo}.chain")
        self.chains.append(os.open(f"{fifo}.chain", os.O_RDONLY | os.O_NONBLOCK))
        return fifo

    def chain_lives(self) -> bool:
        """Whether a process of a chain that the server started is left."""
        try:
            return os.read(self.chains[-1], 1) != b""
        except BlockingIOError:
            return True

    async def told(self, fifo: Path) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(await asyncio.to_thread(fifo.read_text, encoding="ascii"))
        self.pids.extend(told["pids"])
        return told


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for pid in filter(is_alive, bench.pids):
        os.kill(pid, signal.SIGKILL)
    for chain in bench.chains:
        os.close(chain)


def is_alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.is_alive


async def test_a_server_leads_its_own_group_below_a_subreaper_and_has_exactly_its_environment(
    bench: Bench,
) -> None:
    fifo = bench.fifo()
    env = {"BENCHFLEET_LAUNCH": bench.token, "NCCL_ALGO": "Ring"}
    server = await bench.supervisor.launch(
        LaunchCommand((*ODD_SERVER, str(fifo)), env, str(bench.folder)), bench.log
    )
    told = await bench.told(fifo)
    stat = read_stat(server.pid)
    assert stat is not None
    above = read_stat(server.session.session_id)
    assert above is not None
    assert (stat.parent, stat.session, stat.group) == (above.pid, above.pid, server.pid)
    assert above.start_ticks == server.session.start_ticks
    assert stat.session != os.getsid(0)
    assert (
        told["env"].items() - {("LC_CTYPE", "C.UTF-8")} == env.items()
    )  # what Python itself adds in a C locale
    assert (await bench.supervisor.stop(server.session, PATIENT_S)).left_over == ()


async def test_a_server_that_obeys_is_ended_by_term(bench: Bench) -> None:
    server, pids = await bench.launch("child", "child")
    stopped = await bench.supervisor.stop(server.session, PATIENT_S)
    assert (stopped.ended_by, stopped.left_over) == ("term", ())
    assert 0 < stopped.took_s < PATIENT_S
    assert await server.wait() == -signal.SIGTERM
    assert not any(map(is_alive, pids))


async def test_a_server_that_ignores_term_is_killed_with_all_its_children(bench: Bench) -> None:
    server, pids = await bench.launch("ignore_term", "child", "child", "own_session")
    stopped = await bench.supervisor.stop(server.session, SHORT_S)
    assert (stopped.ended_by, stopped.left_over) == ("kill", ())
    assert stopped.took_s >= SHORT_S
    assert await server.wait() == -signal.SIGKILL
    assert len(pids) == 4
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("trait", ["own_session", "bare", "stranger"])
async def test_a_child_that_moved_to_a_session_of_its_own_is_ended_too(
    bench: Bench, trait: str
) -> None:
    """By the token it bears, by the log it writes to, or as a child of a process that is known."""
    server, (_, child) = await bench.launch("ignore_term", trait)
    assert [process.pid for process in bench.supervisor.living_processes(server.session)] == sorted(
        [server.session.session_id, server.pid, child]
    )
    await bench.supervisor.stop(server.session, SHORT_S)
    assert not is_alive(child)


@pytest.mark.parametrize(
    "traits",
    [("stranger",), ("nameless",), ("deaf", "nameless"), ("deaf", "stranger")],
    ids="-".join,
)
async def test_a_child_shown_to_be_ours_by_its_parent_alone_is_ended_after_it(
    bench: Bench, traits: tuple[str, ...]
) -> None:
    server, (_, child) = await bench.launch(*traits)
    stopped = await bench.supervisor.stop(server.session, SHORT_S)
    assert (stopped.ended_by, stopped.left_over) == ("kill" if "deaf" in traits else "term", ())
    assert not is_alive(child)


@pytest.mark.parametrize("trait", ["child", "own_session", "bare"])
async def test_children_of_a_server_that_died_are_ended(bench: Bench, trait: str) -> None:
    server, (_, child) = await bench.launch("leave", trait)
    assert await server.wait() == 0
    assert is_alive(child)
    stopped = await bench.supervisor.stop(server.session, PATIENT_S)
    assert (stopped.ended_by, stopped.left_over) == ("term", ())
    assert not is_alive(child)


ESCAPES = ["nameless", "daemon", "chain"]


@pytest.mark.parametrize("traits", [(), ("leave",), ("ignore_term",)], ids=["", "leave", "deaf"])
@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_child_that_escapes_is_ended_and_proved_gone(
    bench: Bench, escape: str, traits: tuple[str, ...]
) -> None:
    """By double fork, session, closed descriptors, cleared environment, name, TERM ignored."""
    server, (_, *children) = await bench.launch(*traits, escape)
    if "leave" in traits:
        await server.wait()
    assert bench.chain_lives() is (escape == "chain")
    assert all(map(is_alive, children))
    stopped = await bench.supervisor.stop(server.session, SHORT_S)
    assert stopped.left_over == ()
    assert not any(map(is_alive, children))
    assert not bench.chain_lives()


@pytest.mark.parametrize("known_by", ["record", "token"])
@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_child_that_escaped_is_found_by_the_next_agent(
    bench: Bench, escape: str, known_by: str
) -> None:
    session, (_, *children) = await kill_agent_after_launch(bench, "leave", escape)
    assert bench.chain_lives() is (escape == "chain")
    if known_by == "token":
        found = await asyncio.to_thread(bench.supervisor.find_by_token, bench.token)
        assert found is not None
        session = found
    assert (await bench.supervisor.stop(session, SHORT_S)).left_over == ()
    assert not any(map(is_alive, children))
    assert not bench.chain_lives()


async def test_an_escaped_child_of_another_server_or_of_nobody_is_left_alone(bench: Bench) -> None:
    """They look the same; only the parents differ."""
    server, (_, child) = await bench.launch("daemon")
    other = Bench(bench.folder / "other")
    other.folder.mkdir()
    second, (_, foreign) = await other.launch("leave", "daemon")
    await second.wait()
    fifo = bench.fifo()
    own = await asyncio.create_subprocess_exec(*ODD_SERVER, str(fifo), "leave", "daemon", env={})
    (_, nobodys) = (await bench.told(fifo))["pids"]
    await own.wait()
    assert (await bench.supervisor.stop(server.session, SHORT_S)).left_over == ()
    assert [is_alive(pid) for pid in (child, foreign, nobodys)] == [False, True, True]
    assert (await other.supervisor.stop(second.session, SHORT_S)).left_over == ()
    assert [is_alive(pid) for pid in (foreign, nobodys)] == [False, True]
    for chain in other.chains:
        os.close(chain)


async def test_a_server_that_an_agent_without_subreapers_launched_is_ended(bench: Bench) -> None:
    """As after an upgrade: the record names the launcher itself."""
    fifo = bench.fifo()
    server = await asyncio.create_subprocess_exec(
        *ODD_SERVER,
        str(fifo),
        "child",
        env={"BENCHFLEET_LAUNCH": bench.token},
        start_new_session=True,
    )
    pids = (await bench.told(fifo))["pids"]
    stat = read_stat(server.pid)
    assert stat is not None
    session = RecordedSession(server.pid, server.pid, stat.start_ticks, bench.token)
    stopped = await bench.supervisor.stop(session, PATIENT_S)
    assert (stopped.ended_by, stopped.left_over) == ("term", ())
    assert await server.wait() == -signal.SIGTERM
    assert not any(map(is_alive, pids))


async def test_a_killed_subreaper_is_named_and_what_cannot_be_shown_to_be_ours_is_left_alone(
    bench: Bench,
) -> None:
    server, (_, child) = await bench.launch("leave", "nameless")
    await server.wait()
    os.kill(server.session.session_id, signal.SIGKILL)
    await server.subreaper.wait()
    stopped = await bench.supervisor.stop(server.session, SHORT_S)
    assert is_alive(child)
    assert stopped.left_over[0].startswith(f"pid {child} (")
    assert f"parent process {server.session.session_id} was killed" in stopped.left_over[1]


async def test_a_server_whose_subreaper_is_killed_counts_as_dead_and_is_ended(bench: Bench) -> None:
    server, (launcher, child) = await bench.launch("bare")
    os.kill(server.session.session_id, signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL
    stopped = await bench.supervisor.stop(server.session, PATIENT_S)
    assert not is_alive(launcher)
    assert not is_alive(child)
    assert "was killed" in stopped.left_over[0]


async def test_a_server_that_exits_at_once_is_seen_and_leaves_nothing(bench: Bench) -> None:
    command = LaunchCommand(
        (*ODD_SERVER, "-", "exit"), {"BENCHFLEET_LAUNCH": bench.token}, str(bench.folder)
    )
    server = await bench.supervisor.launch(command, bench.log)
    assert list(await asyncio.gather(server.wait(), server.wait())) == [3, 3]
    stopped = await bench.supervisor.stop(server.session, PATIENT_S)
    assert (stopped.ended_by, stopped.left_over) == ("none", ())
    assert stopped.took_s < 5


async def test_stopping_twice_at_once_and_again_is_harmless(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = await bench.launch()
    both, wait = asyncio.Barrier(2), ServerProcess.wait

    async def wait_for_both(process: ServerProcess) -> int:
        code = await wait(process)
        await both.wait()
        return code

    monkeypatch.setattr(ServerProcess, "wait", wait_for_both)
    stopped = await asyncio.gather(
        *(bench.supervisor.stop(server.session, PATIENT_S) for _ in range(2))
    )
    assert {one.left_over for one in stopped} == {()}
    assert (await bench.supervisor.stop(server.session, PATIENT_S)).ended_by == "none"


@pytest.mark.parametrize("argv", [("/nowhere/python",), (str(FAKES),)], ids=["missing", "a folder"])
async def test_a_program_that_cannot_be_started_is_an_error_and_no_process(
    bench: Bench, argv: tuple[str, ...]
) -> None:
    with pytest.raises(OSError, match=r"No such file|Permission denied"):
        await bench.supervisor.launch(
            LaunchCommand(argv, {"BENCHFLEET_LAUNCH": bench.token}, str(bench.folder)), bench.log
        )
    assert bench.supervisor.find_by_token(bench.token) is None


async def test_ten_megabytes_of_output_block_nothing_and_are_all_in_the_log(bench: Bench) -> None:
    server, _ = await bench.launch("loud")
    assert bench.log.stat().st_size == 10 * 1024 * 1024
    assert bench.log.stat().st_mode & 0o777 == 0o600
    await bench.supervisor.stop(server.session, PATIENT_S)


async def test_a_reused_process_id_is_never_signalled(bench: Bench) -> None:
    server, _ = await bench.launch()
    stale = replace(
        server.session,
        start_ticks=server.session.start_ticks - 1,
        token="another",
        log_path="/another",
    )
    stopped = await bench.supervisor.stop(stale, SHORT_S)
    assert (stopped.ended_by, stopped.left_over) == ("none", ())
    assert is_alive(server.pid)
    stat = read_stat(server.pid)
    assert stat is not None
    await asyncio.wait_for(wait_gone(replace(stat, start_ticks=1)), PATIENT_S)
    await bench.supervisor.stop(server.session, PATIENT_S)


async def test_the_record_of_another_boot_matches_nothing(bench: Bench) -> None:
    server, _ = await bench.launch()
    stopped = await bench.supervisor.stop(replace(server.session, boot_id="another"), SHORT_S)
    assert (stopped.ended_by, stopped.left_over, is_alive(server.pid)) == ("none", (), True)
    await bench.supervisor.stop(server.session, PATIENT_S)


async def test_a_bearer_of_the_token_among_strangers_does_not_make_them_ours(bench: Bench) -> None:
    """A process in our own session that happens to bear the token: it is ended, its session is not."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    bearer = await asyncio.create_subprocess_exec(
        "sleep", "60", env={**os.environ, "BENCHFLEET_LAUNCH": bench.token}
    )
    bench.pids += [stranger.pid, bearer.pid]
    session = bench.supervisor.find_by_token(bench.token)
    assert session is not None
    assert [process.pid for process in members_of(session)] == [bearer.pid]
    await bench.supervisor.stop(session, PATIENT_S)
    assert await bearer.wait() == -signal.SIGTERM
    assert is_alive(stranger.pid)
    stranger.kill()
    await stranger.wait()


async def test_a_token_that_nobody_bears_finds_nothing(bench: Bench) -> None:
    assert bench.supervisor.find_by_token(bench.token) is None


async def kill_agent_after_launch(bench: Bench, *traits: str) -> tuple[RecordedSession, list[int]]:
    """What an agent had recorded when it was killed, and its server's processes."""
    fifo = bench.fifo()
    argv = [
        str(FAKES / "short_lived_agent.py"),
        str(bench.folder),
        bench.token,
        *ODD_SERVER,
        str(fifo),
        *traits,
    ]
    agent = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    session = RecordedSession(**json.loads(await agent.stdout.readline()))
    pids = (await bench.told(fifo))["pids"]
    agent.kill()
    assert await agent.wait() == -signal.SIGKILL
    return session, pids


@pytest.mark.parametrize("known_by", ["record", "token"])
async def test_a_server_outlives_its_killed_agent_and_is_ended_by_the_next(
    bench: Bench, known_by: str
) -> None:
    recorded, pids = await kill_agent_after_launch(
        bench, "ignore_term", "child", "own_session", "bare"
    )
    assert all(map(is_alive, pids))
    found = await asyncio.to_thread(bench.supervisor.find_by_token, bench.token)
    assert found == replace(recorded, pid=recorded.session_id, log_path="")
    session = recorded if known_by == "record" else found
    stopped = await bench.supervisor.stop(session, SHORT_S)
    assert (stopped.ended_by, stopped.left_over) == ("kill", ())
    assert not any(map(is_alive, pids))


async def test_what_is_left_of_a_server_whose_leader_died_with_its_agent_is_found_by_token(
    bench: Bench,
) -> None:
    recorded, (leader, child) = await kill_agent_after_launch(bench, "leave", "child")
    stat = read_stat(leader)
    if stat:
        await asyncio.wait_for(wait_gone(stat), PATIENT_S)
    found = await asyncio.to_thread(bench.supervisor.find_by_token, bench.token)
    assert found is not None
    assert found.session_id == recorded.session_id
    inside = {process.pid for process in processes_of_session(found.session_id)}
    assert inside == {recorded.session_id, child}
    assert (await bench.supervisor.stop(found, PATIENT_S)).left_over == ()
    assert not is_alive(child)


async def test_the_end_of_any_process_comes_by_event(bench: Bench) -> None:
    server, (_, child) = await bench.launch("child")
    stat = read_stat(child)
    assert stat is not None
    waiting = asyncio.ensure_future(wait_gone(stat))
    os.kill(child, signal.SIGKILL)
    await asyncio.wait_for(waiting, PATIENT_S)
    assert is_alive(server.pid)
    await bench.supervisor.stop(server.session, PATIENT_S)


async def test_two_servers_are_stopped_apart(bench: Bench) -> None:
    first, first_pids = await bench.launch("child")
    other = Bench(bench.folder / "other")
    other.folder.mkdir()
    second, second_pids = await other.launch("child")
    await bench.supervisor.stop(first.session, PATIENT_S)
    assert [is_alive(pid) for pid in first_pids + second_pids] == [False, False, True, True]
    await other.supervisor.stop(second.session, PATIENT_S)
    assert not any(map(is_alive, second_pids))


def test_a_process_name_with_brackets_and_blanks_is_read_whole() -> None:
    line = b"77 (a) (b 1 2) R 1 5 6 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0 18446744073709551615"
    stat = parse_stat(line)
    assert stat == ProcessStat(
        77, "a) (b 1 2", "R", parent=1, group=5, session=6, start_ticks=12345
    )


def test_a_record_of_an_older_agent_or_of_this_container_is_of_this_boot() -> None:
    kernel, _, ticks = boot_id().partition("/")
    assert kernel and ticks
    assert not is_of_another_boot(boot_id())
    assert not is_of_another_boot(kernel)
    assert not is_of_another_boot("")
    assert is_of_another_boot(f"{kernel}/{int(ticks) + 1}")
    assert is_of_another_boot(f"another/{ticks}")
