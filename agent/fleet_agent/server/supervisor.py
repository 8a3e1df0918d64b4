"""Owns the processes of servers: starts each in its own session, sees it end, ends all of it and
proves that. Never signals by name.

Every signal goes through a pidfd that was opened before the start time of its process was checked,
so it cannot reach another one.
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

_KILL_TIMEOUT_S = 30.0  # the kernel may need this long to give back the memory of a large model
_KILL_AGAIN_S = 1.0  # while a killed process is stuck in the kernel


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that this process launched: the handle to wait for it, and the record by which any
    later process finds it.
    """

    session: RecordedSession
    log: Path
    _process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        """Of the launcher, which leads session and group."""
        return self.session.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, else as `wait` tells it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Exit code of the launcher once it ended, negative for a signal. Comes by event, may be
        awaited by many.
        """
        return await self._process.wait()


class Supervisor:
    """Starts and ends servers. Holds handles only of those that it started itself."""

    def __init__(self, kill_timeout_s: float = _KILL_TIMEOUT_S) -> None:
        self._kill_timeout_s = kill_timeout_s
        self._children: dict[int, ServerProcess] = {}

    async def launch(self, command: LaunchCommand, log_path: Path) -> ServerProcess:
        """Start the command in a session of its own, with exactly its environment; output is
        appended to `log_path`, input is empty.

        Raises OSError when no process came to be: program or folder is missing or may not be used.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(command.env),
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
        """End every process of the server, whoever started it: TERM to all, wait, KILL to what is
        left, wait, look again.

        Takes at most `term_timeout_s` plus the kill timeout. `left_over` is empty when two looks in
        a row found nothing.
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
            log.error("server of session %s: %s is left over", session.session_id, process)
        return ServerStopped(
            ended_by, loop.time() - began_s, tuple(str(process) for process in left)
        )

    def find_by_token(self, token: str) -> RecordedSession | None:
        """The server that bears this launch token in its environment. Reads all of /proc: call it
        in a thread on a large host.
        """
        return find_session_by_token(token)

    def living_processes(self, session: RecordedSession) -> tuple[ProcessStat, ...]:
        """Every living process of the server, wherever it moved to; reads all of /proc."""
        return members_of(session)

    # Inside

    async def _reap(self, session: RecordedSession) -> None:
        child = self._children.get(session.pid)
        if child is None or child.session.start_ticks != session.start_ticks:
            return
        stat = read_stat(session.pid)
        if stat is None or not stat.is_alive or stat.start_ticks != session.start_ticks:
            await child.wait()
            if self._children.get(session.pid) is child:  # nobody else who waited was faster
                del self._children[session.pid]


@dataclass(slots=True)
class _Shutdown:
    """The end of one server. Remembers whom it saw, since a child is only shown to be the server's
    while its parent lives.
    """

    session: RecordedSession
    known: dict[int, ProcessStat] = field(default_factory=dict)

    async def members(self) -> tuple[ProcessStat, ...]:
        """Looks again when nothing was found: a process that forks and ends during one look can
        hide its child from it.
        """
        return await self._scan() or await self._scan()

    async def has_survivors(self, deadline_s: float) -> bool:
        """True when processes are left at the deadline."""
        while members := await self.members():
            if asyncio.get_running_loop().time() >= deadline_s:
                return True
            await _wait_all_gone(members, deadline_s)
        return False

    async def kill(self, deadline_s: float) -> None:
        """KILL to all until none is left, again and again for those that came to be meanwhile."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline_s and (members := await self.members()):
            _send_signal(members, signal.SIGKILL)
            await _wait_all_gone(members, min(loop.time() + _KILL_AGAIN_S, deadline_s))

    async def survivors(self) -> tuple[ProcessStat, ...]:
        """What is alive now, and what may be the server's and cannot be shown to be."""
        return *await self.members(), *await asyncio.to_thread(
            unproven_members, self.session, tuple(self.known.values())
        )

    async def _scan(self) -> tuple[ProcessStat, ...]:
        found = await asyncio.to_thread(members_of, self.session, tuple(self.known.values()))
        self.known.update((process.pid, process) for process in found)
        return found


async def wait_gone(process: ProcessStat) -> None:
    """Returns when the process has ended, or when its id is no longer its own. By event, for
    processes that are not our children too.
    """
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
    """Returns when all have ended or at the deadline of the loop's clock."""
    try:
        async with asyncio.timeout_at(deadline_s), asyncio.TaskGroup() as tasks:
            for process in members:
                tasks.create_task(wait_gone(process))
    except TimeoutError:
        return


def _open_pidfd(process: ProcessStat) -> int | None:
    """A pidfd of exactly this process, None when it has ended."""
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
            log.error("%s may not be signalled", process)
        finally:
            os.close(descriptor)
