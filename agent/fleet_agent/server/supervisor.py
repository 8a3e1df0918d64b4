"""Starts each server in its own Linux session, waits for its end, and ends all of its processes.

Every signal is sent through a pidfd. The start time of the process is checked after the pidfd was
opened, so the signal cannot reach another process. Processes are never found by name.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fleet_agent.core.engine import LaunchCommand
from fleet_agent.host.processes import (
    TOKEN_VARIABLE,
    ProcessStat,
    RecordedSession,
    boot_id,
    find_session_by_token,
    members_of,
    processes_of_session,
    read_stat,
    unproven_members,
)
from fleet_protos.events import ServerStopped

__all__ = ["RecordedSession", "ServerProcess", "Supervisor", "processes_of_session", "wait_gone"]

log = logging.getLogger(__name__)

_KILL_TIMEOUT_S = 30.0  # the kernel may need this long to free the memory of a large model
_KILL_AGAIN_S = 1.0  # while a killed process has not ended yet


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that this agent process launched.

    Holds the handle to wait for the launcher. `session` is the record by which a later agent
    process can find the server again.
    """

    session: RecordedSession
    log: Path
    _process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        """The process id of the launcher, which leads the Linux session and the process group."""
        return self.session.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the launcher, negative for a signal. None while the launcher runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the launcher has ended. Return its exit code, negative for a signal.

        Several tasks may wait at the same time.
        """
        return await self._process.wait()


class Supervisor:
    """Starts and ends servers. Also ends servers that an earlier agent process started."""

    def __init__(self, kill_timeout_s: float = _KILL_TIMEOUT_S) -> None:
        self._kill_timeout_s = kill_timeout_s
        self._children: dict[int, ServerProcess] = {}

    async def launch(self, command: LaunchCommand, log_path: Path) -> ServerProcess:
        """Start the command in a Linux session of its own, with exactly the command's environment.

        The output is appended to `log_path`. The input is empty. Raises OSError if no process was
        started, for example because the program or the folder is missing.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=command.env,
                cwd=command.cwd,
                start_new_session=True,
            )
        finally:
            os.close(output)
        stat = read_stat(process.pid)
        token = command.env.get(TOKEN_VARIABLE, "")
        session = RecordedSession(
            process.pid,
            process.pid,
            stat.start_ticks if stat else 0,
            token,
            str(log_path),
            boot_id(),
        )
        child = ServerProcess(session, log_path, process)
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
        if members := await shutdown.members():
            ended_by = "term"
            _send_signal(members, signal.SIGTERM)
            if await shutdown.has_survivors(began_s + term_timeout_s):
                ended_by = "kill"
                await shutdown.kill(loop.time() + self._kill_timeout_s)
        await self._reap(session)
        left = await shutdown.survivors()
        for process in left:
            log.error(
                "server of Linux session %s: %s could not be ended", session.session_id, process
            )
        return ServerStopped(
            ended_by, loop.time() - began_s, tuple(str(process) for process in left)
        )

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
        child = self._children.get(session.pid)
        if child is None or child.session.start_ticks != session.start_ticks:
            return
        stat = read_stat(session.pid)
        if stat is None or not stat.is_alive or stat.start_ticks != session.start_ticks:
            await child.wait()
            if self._children.get(session.pid) is child:  # no other waiter has removed it
                del self._children[session.pid]


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
    for process in members:
        descriptor = _open_pidfd(process)
        if descriptor is None:
            continue
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            log.error("the agent has no permission to send a signal to %s", process)
        finally:
            os.close(descriptor)
