"""Runs the load process for the agent: starts it, sends it requests, and ends it with everything
that it started.

This module does not import Ray.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from fleet_agent.host.processes import (
    boot_id,
    is_of_another_boot,
    processes_of_session,
    read_stat,
)
from fleet_agent.load import messages
from fleet_agent.load.client.native.library import FOLDER_VARIABLE
from fleet_agent.load.cluster.membership import JOIN_LIMIT_S
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.workers.ray_temporary import temporary_folder
from fleet_protos.errors import LoadError

READY_TIMEOUT_S: Final = 120.0  # Ray's first start on a slow disk takes 25 s
STOP_TIMEOUT_S: Final = 10.0
_LINE_LIMIT: Final = 1 << 22
_KEPT_VARIABLES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "USER",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CC",
)


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """Identifies a load process even after its agent has died. The start time distinguishes it from
    a later process with the same id.
    """

    session_id: int
    start_ticks: int
    temporary: str = ""
    boot_id: str = ""  # process ids of another boot are meaningless


@dataclass(slots=True)
class _Running:
    """Holds a load process that was started."""

    process: asyncio.subprocess.Process
    recorded: RecordedLoad
    log: Path
    ready: asyncio.Future[float]
    replies: dict[int, asyncio.Future[LoadReply]]
    reading: asyncio.Task[None] | None = None
    ended: bool = False  # its stdout has ended, or its last answer was fatal


class LoadProcess:
    """Runs the one load process of an agent. Call its methods on one event loop. If the process has
    died, the next use starts it again.
    """

    def __init__(self, cluster: Path | None = None) -> None:
        """Prepare without starting the process. If other hosts send the load, `cluster` is the
        folder with this host's membership as the lead. With None, Ray runs on this host only.
        """
        self._cluster = cluster
        self._folder: Path | None = None
        self._running: _Running | None = None
        self._number = 0
        self._lock = (
            asyncio.Lock()
        )  # starting and ending exclude each other: both await the process

    @property
    def recorded(self) -> RecordedLoad | None:
        """Return the record that identifies the running process; None if no process runs."""
        return self._running.recorded if self._running is not None else None

    async def start(self, folder: Path) -> None:
        """Start the process unless it runs, and return at once. Raises LoadError.

        Ray needs some seconds to start; meanwhile a server can load its model. `folder` must be for
        this process only: it holds the log, and Python bytecode if the installation has none.
        """
        async with self._lock:
            self._folder = folder
            if not self._is_alive():
                await self._launch(folder)

    async def wait_ready(self) -> float:
        """Wait for Ray, and return the seconds that its start took. Raises LoadError if Ray did not
        start; the hint names the log.
        """
        running = await self._ensure()
        limit_s = READY_TIMEOUT_S + (JOIN_LIMIT_S if self._cluster else 0.0)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(running.ready)
        except TimeoutError:
            raise LoadError(
                f"Ray did not start within {limit_s:.0f} s", f"see {running.log}"
            ) from None

    async def warm(self, request: LoadRequest) -> LoadReply:
        """Send `request.requests` warm-up requests. With 0 the load process chooses the number.
        Raises what `run` raises.
        """
        return await self._request(messages.WARM, request)

    async def run(self, request: LoadRequest) -> LoadReply:
        """Measure one run. Failed requests are part of the reply. Raises LoadError if the load
        itself failed.
        """
        return await self._request(messages.RUN, request)

    async def cancel(self) -> None:
        """Cancel the run in progress. Its `run` raises LoadError("cancelled"). Does nothing if no
        run is in progress.
        """
        running = self._running
        if running is not None and running.process.stdin is not None:
            for number in tuple(running.replies):
                with suppress(OSError):
                    running.process.stdin.write(messages.request_line(number, messages.CANCEL))

    async def stop(self) -> None:
        """Close the stdin of the process and wait until it ends. Then kill what still runs in its
        session. Does nothing if no process was started.
        """
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        stdin = running.process.stdin
        if stdin is not None:
            stdin.close()
        with suppress(TimeoutError):
            # while Ray starts, the process does not notice the end of its stdin
            async with asyncio.timeout(STOP_TIMEOUT_S if running.ready.done() else 0):
                await running.process.wait()
        await end_leftover(running.recorded)
        await running.process.wait()
        if running.reading is not None:
            await running.reading

    async def _launch(self, folder: Path) -> _Running:
        await self._end()
        log = folder / "load.log"
        try:
            process, temporary = await _spawn(folder, log, self._cluster)
        except OSError as error:
            raise LoadError(f"the load process cannot be started: {error}") from error
        loop = asyncio.get_running_loop()
        stat = read_stat(process.pid)
        recorded = RecordedLoad(process.pid, stat.start_ticks if stat else 0, temporary, boot_id())
        await asyncio.to_thread(write_record, folder, recorded)
        running = _Running(process, recorded, log, loop.create_future(), {})
        running.reading = loop.create_task(_read_answers(running))
        self._running = running
        return running

    def _is_alive(self) -> bool:
        running = self._running
        return running is not None and running.process.returncode is None and not running.ended

    async def _ensure(self) -> _Running:
        """Return the running process. Start a new process if the last one died."""
        async with self._lock:
            if self._running is not None and self._is_alive():
                return self._running
            if self._folder is None:
                raise LoadError("the load process has not been started")
            return await self._launch(self._folder)

    async def _request(self, operation: str, request: LoadRequest) -> LoadReply:
        await self.wait_ready()
        running = await self._ensure()
        self._number += 1
        number = self._number
        answer: asyncio.Future[LoadReply] = asyncio.get_running_loop().create_future()
        running.replies[number] = answer
        orders = running.process.stdin
        assert orders is not None
        try:
            orders.write(messages.request_line(number, operation, request))
            await orders.drain()
            return await asyncio.shield(answer)
        except OSError as error:
            raise LoadError(f"the load process died: {error}", f"see {running.log}") from error
        except asyncio.CancelledError:
            with suppress(OSError):
                orders.write(messages.request_line(number, messages.CANCEL))
            raise
        finally:
            running.replies.pop(number, None)


async def _read_answers(running: _Running) -> None:
    """Pass on each answer of the process until it ends. Then end the processes that it left."""
    assert running.process.stdout is not None
    while line := await running.process.stdout.readline():
        _resolve_answer(running, json.loads(line))
    running.ended = True
    code = await running.process.wait()
    _fail_all(running, f"the load process has ended with exit code {code}")
    await end_leftover(running.recorded)


async def _spawn(
    folder: Path, log: Path, cluster: Path | None
) -> tuple[asyncio.subprocess.Process, str]:
    """Start the process in a session of its own. Return the process and Ray's folder. Raises
    OSError.
    """
    with open_log(log) as output:
        temporary = temporary_folder()
        argv = [
            sys.executable,
            "-m",
            "fleet_agent.load.driver",
            "--folder",
            str(folder),
            "--temporary",
            temporary,
        ]
        argv += ["--cluster", str(cluster)] if cluster else []
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            env=driver_env(os.environ, folder),
            limit=_LINE_LIMIT,
        )
    return process, temporary


def open_log(log: Path) -> BinaryIO:
    """Create the folder of a log and open the log for appending. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


def _resolve_answer(running: _Running, content: Mapping[str, Any]) -> None:
    if content.get("ready"):
        running.ready.set_result(float(content["ray_started_s"]))
        return
    running.ended = running.ended or bool(content.get("fatal"))
    answer = running.replies.get(int(content["id"]))
    if answer is None and not running.ready.done() and "error" in content:
        _fail(running.ready, LoadError(content["error"], f"see {running.log}"))
    elif answer is not None and not answer.done():
        if "ok" in content:
            answer.set_result(messages.read_reply(content["ok"]))
        else:
            _fail(answer, LoadError(content["error"], f"see {running.log}"))


def _fail_all(running: _Running, message: str) -> None:
    tail = log_tail(running.log)
    error = LoadError(message + (f": {tail}" if tail else ""), f"see {running.log}")
    if not running.ready.done():
        _fail(running.ready, error)
    for answer in running.replies.values():
        if not answer.done():
            _fail(answer, error)


def _fail(future: asyncio.Future[Any], error: LoadError) -> None:
    future.set_exception(error)
    future.exception()  # marks it as retrieved, in case nobody awaits the future


def log_tail(log: Path) -> str:
    """Return the last line of a log, at most 300 characters."""
    with suppress(OSError):
        lines = log.read_bytes()[-4096:].decode("utf-8", "replace").splitlines()
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "")
    return ""


def driver_env(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the whole environment of the load process. Settings of Ray and Python in the agent's
    environment are left out.

    Ray starts eight Python processes. Without compiled bytecode next to the sources, this takes 8.5
    s instead of 3.5 s (2 cores). If the installation has no bytecode, for example because it is
    read-only, the bytecode is kept in `folder`.
    """
    env = {name: base[name] for name in _KEPT_VARIABLES if name in base} | {
        "PYTHONUNBUFFERED": "1",
        FOLDER_VARIABLE: str(folder / "native"),
    }
    spec = importlib.util.find_spec("ray")
    if (
        spec is not None
        and spec.origin is not None
        and not os.path.exists(importlib.util.cache_from_source(spec.origin))
    ):
        env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    return env


async def end_earlier(folder: Path) -> tuple[int, ...]:
    """End the load process that a killed agent left in `folder`. Return the ids of the killed
    processes.

    While Ray starts, a load process does not notice that its agent is gone.
    """
    try:
        recorded = RecordedLoad(
            **json.loads(await asyncio.to_thread(_record_path(folder).read_text))
        )
    except (
        OSError,
        ValueError,
        TypeError,
    ):  # no record, or an incomplete one: the end of its stdin ends the process
        return ()
    return await end_leftover(recorded)


def write_record(folder: Path, recorded: RecordedLoad) -> None:
    """Write to `folder` the record that `end_earlier` needs to find the process. Raises OSError."""
    _record_path(folder).write_text(json.dumps(asdict(recorded)))


def _record_path(folder: Path) -> Path:
    return folder / "process.json"


async def end_leftover(recorded: RecordedLoad) -> tuple[int, ...]:
    """Kill the processes that still run in the session of a recorded load process, and remove its
    temporary folder. Return the ids of the killed processes.

    Nothing is killed if the session may belong to another program: its leader is a newer process
    with the same id, or the machine has started again.
    """
    killed: set[int] = set()
    leader = read_stat(recorded.session_id)
    is_this_boot = bool(recorded.boot_id) and not is_of_another_boot(recorded.boot_id)
    if is_this_boot and (leader is None or leader.start_ticks == recorded.start_ticks):
        while left := await asyncio.to_thread(processes_of_session, recorded.session_id):
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                killed.add(process.pid)
            await asyncio.sleep(0.02)
    if recorded.temporary and Path(recorded.temporary).name.startswith("bf-"):
        await asyncio.to_thread(shutil.rmtree, recorded.temporary, ignore_errors=True)
    return tuple(sorted(killed))
