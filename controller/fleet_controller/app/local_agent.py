"""Starts, watches, restarts and stops the local agent's process for `fleetctl run` and `up`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet_controller.app.socket_probe import is_listening
from fleet_protos.errors import HostUnreachable
from fleet_protos.v1 import agent_pb2, agent_pb2_grpc
from fleet_transport.sockets import listen_address

_POLL_S = 0.05
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class LocalAgentConfig:
    """The folder, name and labels of the local agent, its command and its timeouts."""

    folder: Path
    host_name: str
    labels: tuple[str, ...] = ()  # KEY=VALUE
    command: tuple[str, ...] = (sys.executable, "-m", "fleet_agent.main")
    linger_s: float = 600.0  # how long it runs without a controller, so that one may reconnect
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 120.0  # long, because it stops its servers first

    @property
    def address(self) -> str:
        """Return the gRPC target of the agent."""
        return listen_address(self.folder, "agent")

    @property
    def log(self) -> Path:
        """Return the file that the agent's output goes to."""
        return self.folder / "agent.log"

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command that starts the agent."""
        options = (
            "--state",
            str(self.folder),
            "--listen",
            self.address,
            "--host-name",
            self.host_name,
            "--linger",
            f"{self.linger_s:g}",
        )
        return (
            *self.command,
            *options,
            *(word for label in self.labels for word in ("--label", label)),
        )


class LocalAgent:
    """The agent process on this machine. If an agent of an earlier controller still answers at the
    socket, it is used and no second agent is started.
    """

    def __init__(self, config: LocalAgentConfig) -> None:
        self.config = config
        self.pid = 0
        self.restarts = 0
        self.ready = asyncio.Event()  # set while it answers
        # A pidfd identifies the process even if its pid is used again.
        self._pidfd: int | None = None
        self._exited = asyncio.Event()  # set when the process of the pidfd has ended
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start the agent and return when it is healthy. If it is not healthy in time, raises
        HostUnreachable with the end of the agent's log.
        """
        self.config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if await self._is_healthy():
            self._open_pidfd(await self._query_pid())
            self.ready.set()
            return
        self._launch()
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                while not await self._is_healthy():
                    if self._child is not None and self._child.poll() is not None:
                        raise HostUnreachable(
                            f"the local agent ended with exit code {self._child.returncode} "
                            f"before it answered{self._log_tail()}",
                            f"see its log: {self.config.log}",
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise HostUnreachable(
                f"the local agent did not answer within {self.config.start_timeout_s:g} s"
                f"{self._log_tail()}",
                f"see its log: {self.config.log}",
            ) from error
        self.ready.set()

    async def keep_alive(self, report: Callable[[str], None]) -> None:
        """Restart the agent whenever it ends, until `stop` is called. Raises HostUnreachable if the
        agent does not start.
        """
        while not self._stopping:
            await self._wait_exit(None)
            if not self._stopping:
                self.restarts += 1
                self.ready.clear()
                report(f"the local agent (pid {self.pid}) ended and is started again")
                self._reap()
                await self.start()

    def request_stop(self) -> None:
        """Send SIGTERM without waiting for the end."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    async def stop(self) -> str:
        """Stop the agent by SIGTERM, or by SIGKILL after the stop timeout, and reap it. Return a
        warning if it was killed, else an empty text.
        """
        self._stopping = True
        if self._pidfd is None:
            return ""
        warning = ""
        self._signal(signal.SIGTERM)
        if not await self._wait_exit(self.config.stop_timeout_s):
            warning = (
                f"the local agent (pid {self.pid}) did not stop within "
                f"{self.config.stop_timeout_s:g} s and was killed; see {self.config.log}"
            )
            self._signal(signal.SIGKILL)
            await self._wait_exit(None)
        self._reap()
        return warning

    def _launch(self) -> None:
        with self.config.log.open("ab") as log:
            # Not asyncio's subprocess: the child must outlive the event loop of an interrupted
            # controller without a warning.
            self._child = subprocess.Popen(
                self.config.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.config.folder,
            )
        self._open_pidfd(self._child.pid)

    def _open_pidfd(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise HostUnreachable(
                f"the local agent (pid {pid}) has just ended", "try again"
            ) from error
        self._exited = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited.set)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait()
            self._child = None
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    async def _wait_exit(self, timeout_s: float | None) -> bool:
        """Wait for the end of the process; return False if it still runs after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        except TimeoutError:
            return False
        return True

    async def _is_healthy(self) -> bool:
        # After a refused connection gRPC pauses, which would slow the start, so test the socket
        # first.
        if not is_listening(self.config.address):
            return False
        async with grpc.aio.insecure_channel(self.config.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _query_pid(self) -> int:
        async with grpc.aio.insecure_channel(self.config.address) as channel:
            try:
                answer = await agent_pb2_grpc.AgentServiceStub(channel).Describe(
                    agent_pb2.DescribeRequest(), timeout=5.0
                )
            except grpc.aio.AioRpcError as error:
                raise HostUnreachable(
                    f"the process that answers at {self.config.address} is not an agent: "
                    f"{error.details()}"
                ) from error
            return answer.pid

    def _log_tail(self) -> str:
        try:
            text = self.config.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""
        return f"; its log ends:\n{text}" if text else ""
