"""Starts each server below a subreaper, waits for its end, and ends all of its processes.

Every signal is sent through a pidfd. The start time of the process is checked after the pidfd was
opened, so the signal cannot reach another process. Processes are never found by name.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_agent.core.engine import LaunchCommand
from fleet_agent.host.processes import (
    TOKEN_VARIABLE,
    ProcessStat,
    RecordedSession,
    boot_id,
    find_session_by_token,
    is_of_another_boot,
    members_of,
    processes_of_session,
    read_stat,
    unproven_members,
)
from fleet_agent.server import subreaper
from fleet_protos.events import ServerStopped

__all__ = ["RecordedSession", "ServerProcess", "Supervisor", "processes_of_session", "wait_gone"]

log = logging.getLogger(__name__)

_KILL_TIMEOUT_S = 30.0  # the kernel may need this long to free the memory of a large model
_KILL_AGAIN_S = 1.0  # while a killed process has not ended yet
_SUBREAPER_ENDS_S = 1.0  # after the last of its children; it may be slow on a busy host
_SUBREAPER = subreaper.__file__


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that this agent process launched.

    Holds the handle to wait for the launcher. `session` is the record by which a later agent
    process can find the server again.
    """

    session: RecordedSession
    log: Path
    subreaper: asyncio.subprocess.Process
    _exit_code: asyncio.Future[int]

    @property
    def pid(self) -> int:
        """Process id of the launcher, which leads a process group of its own."""
        return self.session.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the launcher, negative for a signal; None while it runs."""
        return self._exit_code.result() if self._exit_code.done() else None

    async def wait(self) -> int:
        """Wait until the launcher has ended. Return its exit code, negative for a signal.

        Several tasks may wait at the same time.
        """
        return await asyncio.shield(self._exit_code)


class Supervisor:
    """Starts and ends servers. Also ends servers that an earlier agent process started."""

    def __init__(self, kill_timeout_s: float = _KILL_TIMEOUT_S) -> None:
        self._kill_timeout_s = kill_timeout_s
        self._children: dict[int, ServerProcess] = {}

    async def launch(self, command: LaunchCommand, log_path: Path) -> ServerProcess:
        """Start the command below a subreaper of its own, with exactly its environment.

        The output is appended to `log_path`. The input is empty. Raises OSError if no process was
        started, for example because the program or the folder is missing.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        token = command.env.get(TOKEN_VARIABLE, "")
        output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _SUBREAPER, str(_marker(log_path)), token),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env={TOKEN_VARIABLE: token},
                start_new_session=True,
            )
        finally:
            os.close(output)
        started = await _order(process, command)
        if "pid" not in started:
            await process.wait()
            raise OSError(
                started.get("errno") or errno.ECHILD,
                started.get("error") or f"the server's parent process failed; see {log_path}",
                started.get("file"),
            )
        stat = read_stat(process.pid)
        session = RecordedSession(
            int(started["pid"]),
            process.pid,
            stat.start_ticks if stat else 0,
            token,
            str(log_path),
            boot_id(),
        )
        exit_code = asyncio.ensure_future(_read_exit_code(process))
        child = ServerProcess(session, log_path, process, exit_code)
        self._children[process.pid] = child
        return child

    async def stop(self, session: RecordedSession, term_timeout_s: float) -> ServerStopped:
        """End every process of the server. All get SIGTERM. Processes that still run after
        `term_timeout_s` get SIGKILL.

        This takes at most about `term_timeout_s` plus the kill timeout. `left_over` of the result
        is empty if two scans in a row found no process.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        shutdown = _Shutdown(session)
        ended_by = "none"
        if members := await shutdown.members_to_end():
            ended_by = "term"
            _send_signal(members, signal.SIGTERM)
            if await shutdown.has_survivors(began_s + term_timeout_s):
                ended_by = "kill"
                await shutdown.kill(loop.time() + self._kill_timeout_s)
        await self._reap(session)
        left = await shutdown.survivors()
        remains = (*map(str, left), *_describe_lost_subreaper(session))
        for what in remains:
            log.error("server of Linux session %s: %s could not be ended", session.session_id, what)
        return ServerStopped(ended_by, loop.time() - began_s, remains)

    def find_by_token(self, token: str) -> RecordedSession | None:
        """Find the server that has this launch token in its environment. Return None if there is no
        such server.

        This reads all of /proc: call it in a thread.
        """
        return find_session_by_token(token)

    def living_processes(self, session: RecordedSession) -> tuple[ProcessStat, ...]:
        """Return every living process of the server, in any Linux session. This reads all of
        /proc.
        """
        return members_of(session)

    # Inside

    async def _reap(self, session: RecordedSession) -> None:
        child = self._children.get(session.session_id)
        if child is None or child.session.start_ticks != session.start_ticks:
            return
        stat = read_stat(session.session_id)
        if stat is None or not stat.is_alive or stat.start_ticks != session.start_ticks:
            await child.wait()
            await child.subreaper.wait()
            if self._children.get(session.session_id) is child:  # no other waiter has removed it
                del self._children[session.session_id]


@dataclass(slots=True)
class _Shutdown:
    """Ends the processes of one server.

    Remembers the processes that it found, because a child can be recognised as the server's only
    while its parent lives.
    """

    session: RecordedSession
    known: dict[int, ProcessStat] = field(default_factory=dict)

    async def members(self) -> tuple[ProcessStat, ...]:
        """Return the living processes of the server. If the first scan finds none, scan again.

        A process that forks and ends during one scan can hide its child from this scan.
        """
        return await self._scan() or await self._scan()

    async def members_to_end(self) -> tuple[ProcessStat, ...]:
        """Return the living processes; none if the subreaper is ending because it has no child."""
        members = await self.members()
        if members and all(map(_is_subreaper, members)):
            await _wait_all_gone(members, asyncio.get_running_loop().time() + _SUBREAPER_ENDS_S)
            members = await self.members()
        return members

    async def has_survivors(self, deadline_s: float) -> bool:
        """Wait for the processes to end. Return True if a process still lives at the deadline."""
        while members := await self.members():
            if asyncio.get_running_loop().time() >= deadline_s:
                return True
            await _wait_all_gone(members, deadline_s)
        return False

    async def kill(self, deadline_s: float) -> None:
        """Send SIGKILL until no process lives. Processes that start meanwhile get it, too."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline_s and (members := await self.members()):
            _send_signal(members, signal.SIGKILL)
            await _wait_all_gone(members, min(loop.time() + _KILL_AGAIN_S, deadline_s))

    async def survivors(self) -> tuple[ProcessStat, ...]:
        """Return the living processes, including those that may be the server's although nothing
        proves it.
        """
        return *await self.members(), *await asyncio.to_thread(
            unproven_members, self.session, tuple(self.known.values())
        )

    async def _scan(self) -> tuple[ProcessStat, ...]:
        found = await asyncio.to_thread(members_of, self.session, tuple(self.known.values()))
        self.known.update((process.pid, process) for process in found)
        return found


async def wait_gone(process: ProcessStat) -> None:
    """Wait without polling until the process has ended. It need not be a child of the agent."""
    descriptor = _open_pidfd(process)
    if descriptor is None:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _wait_all_gone(members: Iterable[ProcessStat], deadline_s: float) -> None:
    """Wait until all processes have ended, at most until the deadline on the loop's clock."""
    try:
        async with asyncio.timeout_at(deadline_s), asyncio.TaskGroup() as tasks:
            for process in members:
                tasks.create_task(wait_gone(process))
    except TimeoutError:
        return


def _open_pidfd(process: ProcessStat) -> int | None:
    """Open a pidfd of exactly this process. Return None if the process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno in (
            errno.EINVAL,
            errno.ENOENT,
        ):  # the id now belongs to a thread of another process
            return None
        raise
    now = read_stat(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        os.close(descriptor)
        return None
    return descriptor


def _send_signal(members: Iterable[ProcessStat], number: signal.Signals) -> None:
    """Send a signal to each process.

    A subreaper is treated differently, because it ends by itself after the others. Instead of
    SIGKILL it gets SIGTERM, which makes it kill the remaining processes. It gets no other signal.
    """
    for process in members:
        if _is_subreaper(process):
            if number is signal.SIGKILL:
                _signal_one(process, signal.SIGTERM)
        else:
            _signal_one(process, number)


def _signal_one(process: ProcessStat, number: signal.Signals) -> None:
    descriptor = _open_pidfd(process)
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        log.error("the agent has no permission to send a signal to %s", process)
    finally:
        os.close(descriptor)


async def _order(process: asyncio.subprocess.Process, command: LaunchCommand) -> dict[str, Any]:
    """Send the command to the subreaper and return its answer; empty if it ended without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    order = {"argv": command.argv, "env": dict(command.env), "cwd": command.cwd}
    process.stdin.write(json.dumps(order).encode())
    process.stdin.close()
    line = await process.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {}
    return answer


async def _read_exit_code(process: asyncio.subprocess.Process) -> int:
    """Wait for the launcher's exit code. If the subreaper is killed, return the code of that."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    return int(json.loads(line)["exit_code"]) if line else await process.wait()


def _marker(log_path: Path) -> Path:
    """Return the file that exists while the subreaper of the server with this log has children."""
    return log_path.with_suffix(".subreaper")


def _is_subreaper(process: ProcessStat) -> bool:
    """Whether the process is the subreaper of a server, also one that an older agent started.

    Only the leader of its session can be one.
    """
    if process.pid != process.session:
        return False
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(words) > 3 and words[3].endswith(b"/fleet_agent/server/subreaper.py")


def _describe_lost_subreaper(session: RecordedSession) -> tuple[str, ...]:
    """Say that processes may be left if the subreaper was killed; return nothing otherwise."""
    stat = read_stat(session.session_id)
    if stat is not None and stat.is_alive and stat.start_ticks == session.start_ticks:
        return ()
    if not session.log_path or not _marker(Path(session.log_path)).exists():
        return ()
    if is_of_another_boot(session.boot_id):
        return ()
    return (
        f"processes that left the server's session, if there are any: the server's parent process"
        f" {session.session_id} was killed, so they cannot be found",
    )
