"""Launches the server of one trial, waits until it is ready, proves its configuration
and ends it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet_agent.core.engine import EngineAdapter, LaunchPlace
from fleet_agent.engines.sglang.launch.nccl_logging import with_nccl_log
from fleet_agent.host.host_state import HostState
from fleet_agent.host.open_files import HINT as FILES_HINT
from fleet_agent.host.open_files import is_out_of_files
from fleet_agent.host.port_owner import foreign_listener
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.host_findings import Finding, launch_flags, launch_refusal
from fleet_agent.server.launch_setup import (
    clean_up_launch,
    load_secrets,
    new_api_key,
    prepare_command,
    with_api_key,
)
from fleet_agent.server.monitor import ServerMonitor
from fleet_agent.server.ports import Ports
from fleet_agent.server.preflight import preflight
from fleet_agent.server.supervisor import RecordedSession, ServerProcess, Supervisor
from fleet_agent.storage import trial_artifacts
from fleet_agent.storage.artifact_retention import KEPT_BYTES
from fleet_agent.storage.secrets import Secrets
from fleet_knowledge.server_log.diagnosis import launch_phases
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, Conflict, ErrorKind, ServerError
from fleet_protos.trial_types import EngineKind, TrialSpec

_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 1.0  # between two checks of readiness
_CHANGE_PAUSE_S, _REPEAT_PAUSE_S = 5.0, 60.0  # between two reports of what is missing
_READY_CHECK_LIMIT_S = 30.0  # one check includes a real completion on a cold server


@dataclass(frozen=True, slots=True)
class TrialTools:
    """Holds the objects that all trials of the agent share."""

    supervisor: Supervisor
    load: LoadProcess
    ports: Ports
    engines: Mapping[EngineKind, EngineAdapter]
    host: HostState = field(default_factory=HostState)
    kept_bytes: int = KEPT_BYTES  # of files of ended trials that the controller has stored


@dataclass(slots=True)
class ServerLaunch:
    """One launch of the trial's server.

    `process`, `session` and `monitor` are None until a process exists. `used_mib` is the memory, in
    MiB, that was in use on each of the launch's GPUs before the launch.
    """

    place: LaunchPlace
    log: Path
    witness: bool = False
    began_s: float = 0.0
    process: ServerProcess | None = None
    session: RecordedSession | None = None
    monitor: ServerMonitor | None = None
    used_mib: Mapping[int, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()  # of the preflight


@dataclass(slots=True)
class _ReadinessReports:
    """Reports what an external server lacks: a change at most every five seconds, and every minute
    what is unchanged.
    """

    report: Callable[[ev.Body], None]
    last: str = ""
    reported_at_s: float = -math.inf

    def add(self, missing: str, now_s: float) -> None:
        """Report it if it is time to."""
        pause_s = _CHANGE_PAUSE_S if missing != self.last else _REPEAT_PAUSE_S
        if now_s - self.reported_at_s >= pause_s:
            self.last, self.reported_at_s = missing, now_s
            self.report(ev.ServerProgressed(launch_phases.START, message=missing))


class TrialServer:
    """Manages the server of one trial: a server that the trial launches, or an external server that
    the trial measures.
    """

    def __init__(
        self, spec: TrialSpec, tools: TrialTools, gpus: tuple[int, ...], folder: Path
    ) -> None:
        self._spec = spec
        self._tools = tools
        self._engine = tools.engines[spec.engine.kind]
        self._folder = folder
        place = LaunchPlace(
            port=0, gpus=gpus, folder=folder / "server", token=f"{spec.trial_id}/{spec.attempt}"
        )
        self._current = ServerLaunch(place, folder / "server.log")
        self._launch_settled = asyncio.Event()
        self._launch_settled.set()
        self.api_key = ""  # that the server of this launch requires; empty: none
        self.secrets = Secrets()  # of the launch; they are masked in all that is reported or kept

    @property
    def url(self) -> str:
        """The URL at which the server answers."""
        return self._engine.url(self._spec, self._current.place)

    @property
    def is_observable(self) -> bool:
        """True if a server may answer at `url`."""
        return self._engine.launches or bool(self._spec.engine.url)

    # Launch

    async def launch(self, announce: Callable[[ev.Body], None], witness: bool = False) -> ev.Body:
        """Launch the server. Return ServerLaunched, or ServerFailed if no process was started.

        `announce` is called with ServerLaunching right before the process is started.
        """
        self._launch_settled.clear()
        try:
            return await self._launch(announce, witness)
        except ConfigError as error:
            return ev.ServerFailed(
                ErrorKind.CONFIG, "config", f"{error.message}: {error.hint}", hint=error.hint
            )
        except Conflict as error:
            return ev.ServerFailed(ErrorKind.SERVER_LAUNCH, "no_free_port", str(error))
        except OSError as error:
            out = is_out_of_files(error)
            return ev.ServerFailed(
                ErrorKind.SERVER_LAUNCH,
                "agent_out_of_files" if out else "launch_failed",
                f"the agent can open no more files: {error}"
                if out
                else f"{type(error).__name__}: {error}",
                hint=FILES_HINT if out else "",
            )
        finally:
            self._launch_settled.set()

    async def _launch(self, announce: Callable[[ev.Body], None], witness: bool) -> ev.Body:
        self._current = current = self._new_launch(witness)
        current.place.folder.mkdir(parents=True, exist_ok=True)
        command = self._engine.launch_command(
            with_nccl_log(self._spec, witness=witness, folder=str(self._folder)), current.place
        )
        self.api_key = new_api_key(command)
        self.secrets = with_api_key(
            await asyncio.to_thread(load_secrets, command.env), self.api_key
        )
        current.findings = await preflight(self._spec, current.place, self._tools.host)
        if refused := launch_refusal(current.findings):
            return refused
        current.used_mib = await self._tools.host.memory_baseline(
            self._spec.engine.kind, current.place.gpus
        )
        announce(
            ev.ServerLaunching(current.place.token, current.place.port, current.place.gpus, witness)
        )
        current.began_s = time.monotonic()
        current.process = await self._tools.supervisor.launch(
            prepare_command(command, self.secrets, self.api_key), current.log
        )
        current.session = session = current.process.session
        current.monitor = ServerMonitor(current.process, self._spec.engine)
        return ev.ServerLaunched(
            session.pid,
            session.session_id,
            session.start_ticks,
            self.url,
            command.argv,
            command.env,
            str(current.log),
            session.boot_id,
        )

    def _new_launch(self, witness: bool) -> ServerLaunch:
        token = self._current.place.token
        self._tools.ports.release_port(token)
        port = self._tools.ports.allocate(token)
        return ServerLaunch(
            replace(self._current.place, port=port),
            self._folder / ("witness.log" if witness else "server.log"),
            witness,
        )

    async def wait_launch_settled(self) -> None:
        """Wait until no launch is in progress. If a launch has started a process, the process is
        known then.
        """
        await self._launch_settled.wait()

    def watch(self, tasks: asyncio.TaskGroup, report: Callable[[ev.Body], None]) -> None:
        """Report the launch's progress, and the server's death or stall, until `stop` is called."""
        monitor = self._current.monitor
        if monitor is not None:
            tasks.create_task(monitor.watch(report))

    # Ready, proof

    async def await_ready(
        self, deadline_s: float, report: Callable[[ev.Body], None] = lambda _: None
    ) -> ev.Body:
        """Wait until the server is ready. Return ServerReady, or ServerFailed at the deadline.

        A ready server is healthy, is the server that was launched, and has completed a request.
        `deadline_s` is in monotonic seconds. What an external server lacks is passed to `report`;
        the log of a launched server shows more.
        """
        missing, pause_s, checked_at_s = "nothing answered yet", _FIRST_POLL_S, 0.0
        reports = _ReadinessReports(report)
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                while True:
                    checked_at_s = time.monotonic()
                    missing = await self._check_ready()
                    if not missing:
                        return await self._confirm_ready()
                    checked_at_s = 0.0
                    if not self._engine.launches:
                        reports.add(missing, time.monotonic())
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 1.3, _LONGEST_POLL_S)
        except ServerError as error:
            return self._failure_event(error)
        except TimeoutError:
            # the result of the check before the last one is out of date
            if checked_at_s and time.monotonic() - checked_at_s > 1:
                missing = self._no_answer_message(time.monotonic() - checked_at_s)
            return self._not_ready(missing)

    def _not_ready(self, missing: str) -> ev.ServerFailed:
        """Return the failure at the deadline. Nobody waits a second time for an external server,
        because the agent cannot launch it again.
        """
        launches = self._engine.launches
        limit_s = self._spec.engine.ready_timeout_s
        return ev.ServerFailed(
            ErrorKind.SERVER_UNHEALTHY if launches else ErrorKind.CONFIG,
            "not_ready",
            f"the server was not ready within {limit_s:g} s; the last check found: {missing}",
            log_tail=trial_artifacts.read_tail(self._current.log),
            hint="" if launches else "start the server, or correct engine.url",
        )

    async def _confirm_ready(self) -> ev.Body:
        """Return ServerReady if the server that answers is the one that was launched.

        Raises ServerError if another process listens on the port.
        """
        current = self._current
        if current.monitor is None:
            return ev.ServerReady()
        ready_s = time.monotonic() - current.began_s
        if stranger := await asyncio.to_thread(
            foreign_listener, current.place.port, current.monitor.processes()
        ):
            message = (
                f"port {current.place.port} is held by {stranger}, which does not belong to the "
                "launched server"
            )
            raise ServerError(ErrorKind.SERVER_LAUNCH, "port_in_use", message)
        return ev.ServerReady(ready_s, await current.monitor.finish_launch())

    async def _check_ready(self) -> str:
        """Return what the server still lacks to be ready. Empty if it is ready. After a timeout,
        the server counts as not ready.
        """
        try:
            async with asyncio.timeout(_READY_CHECK_LIMIT_S):
                return await self._engine.check_ready(self._spec, self.url, self.api_key)
        except TimeoutError:
            return self._no_answer_message(_READY_CHECK_LIMIT_S)

    def _no_answer_message(self, seconds: float) -> str:
        return f"{self.url} has not answered for {seconds:.0f} s"

    async def prove(self) -> ev.Body:
        """Read back the configuration that took effect. Return ConfigurationProved with the host's
        fingerprint.

        Return ServerFailed if the server does not answer any more.
        """
        try:
            async with asyncio.timeout(_READY_CHECK_LIMIT_S):
                engine = replace(
                    self._spec.engine, env=self.secrets.fill(self._spec.engine.env)
                )  # the server shows the values of secrets, not their references
                proof = await self._engine.prove_configuration(
                    replace(self._spec, engine=engine),
                    self.url,
                    self._current.log,
                    self.api_key,
                )
        except ServerError as error:
            return self._failure_event(error)
        except TimeoutError:
            return ev.ServerFailed(
                ErrorKind.SERVER_UNHEALTHY,
                "unhealthy",
                f"{self.url} did not show its configuration in time",
            )
        gates = (*proof.gates, *launch_flags(self._current.findings))
        return replace(
            proof,
            gates=gates,
            fingerprint=await self._tools.host.fingerprint(),
            witness=self._current.witness,
        )

    def _failure_event(self, error: ServerError) -> ev.ServerFailed:
        return ev.ServerFailed(
            error.kind,
            error.failure_class,
            error.message,
            error.server_exit_code,
            error.log_tail or trial_artifacts.read_tail(self._current.log),
            hint=error.hint,
        )

    # End

    async def wait_death_reported(self) -> None:
        """Wait until a death of the server that was noticed has been reported."""
        if self._current.monitor is not None:
            await self._current.monitor.wait_death_reported()

    async def stop(self) -> ev.ServerStopped:
        """End the server and everything that belongs to it. Does nothing if there is no server.

        Return ServerStopped. Its `left_over` lists what could not be ended or released.
        """
        await self.wait_launch_settled()
        current = self._current
        if current.monitor is not None:
            current.monitor.stop_reporting()
        session = current.session or await asyncio.to_thread(
            self._tools.supervisor.find_by_token, current.place.token
        )
        stopped = (
            await self._tools.supervisor.stop(session, self._spec.engine.stop_timeout_s)
            if session
            else ev.ServerStopped()
        )
        current.session = session if stopped.left_over else None
        ended = await clean_up_launch(stopped, self._spec.engine, current.place, self.secrets)
        return replace(
            ended,
            left_over=(
                *ended.left_over,
                *await self._tools.host.wait_memory_released(current.used_mib),
            ),
        )

    def adopt(self, launched: ev.ServerLaunched) -> None:
        """Take over the server that an earlier agent process launched, in order to end it."""
        self._current.session = RecordedSession(
            launched.pid,
            launched.session_id,
            launched.start_ticks,
            self._current.place.token,
            launched.log_path,
            launched.boot_id,
        )

    def release_port(self) -> None:
        """Release the port of the trial's server."""
        self._tools.ports.release_port(self._current.place.token)
