"""Owns the doing of one trial's effects: launch, wait, prove, load, collect, stop. Each ends in exactly one event body."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_agent import evidence
from fleet_agent.core.effects import CloseTrial
from fleet_agent.core.gates import RunFacts, run_gates
from fleet_agent.engines.engine import Engine, Place
from fleet_agent.engines.sglang.explain import kind_of
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.process import LoadProcess
from fleet_agent.ports import Ports
from fleet_agent.supervisor import RecordedSession, ServerProcess, Supervisor
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, ErrorKind, LoadFailed, ServerFailed
from fleet_protos.trial import EngineKind, Gate, GateEffect, RunResult, TrialSpec, Workload

log = logging.getLogger(__name__)

_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 1.0  # between two looks at readiness: short at first, then never above a second
_LOOK_LIMIT_S = 30.0  # one look may take this long: a real completion on a cold server


@dataclass(frozen=True, slots=True)
class Tools:
    """What the agent lends to each trial."""

    supervisor: Supervisor
    load: LoadProcess
    ports: Ports
    engines: Mapping[EngineKind, Engine]
    fingerprint: Mapping[str, str]


class Errands:
    """Carries out effects for one trial; keeps the handle of its server and nothing else."""

    def __init__(self, spec: TrialSpec, tools: Tools, gpus: tuple[int, ...], folder: Path) -> None:
        self._spec = spec
        self._tools = tools
        self._engine = tools.engines[spec.engine.kind]
        self._folder = folder
        self._place = Place(port=0, gpus=gpus, folder=folder / "server", token=f"{spec.trial_id}/{spec.attempt}")
        self._process: ServerProcess | None = None
        self._session: RecordedSession | None = None
        self._launched_at_s = 0.0
        self._stopping = False
        self._is_sglang = spec.engine.kind is not EngineKind.EXTERNAL  # of an external server its proof tells
        self._flags: tuple[Gate, ...] = ()  # of the proof: each run of this launch carries them
        self._settled = asyncio.Event()
        self._settled.set()

    # Launch

    async def launch(self, announce: Callable[[ev.Body], None]) -> ev.Body:
        """ServerLaunched, or ServerFailed when no process came to be. Announces ServerLaunching first."""
        self._settled.clear()
        try:
            return await self._launch(announce)
        except ConfigError as error:
            return ev.ServerFailed(ErrorKind.CONFIG, "config", str(error))
        except OSError as error:
            return ev.ServerFailed(ErrorKind.SERVER_LAUNCH, "launch_failed", f"{type(error).__name__}: {error}")
        finally:
            self._settled.set()

    async def _launch(self, announce: Callable[[ev.Body], None]) -> ev.Body:
        self._place = replace(self._place, port=self._tools.ports.take(self._place.token))
        self._place.folder.mkdir(parents=True, exist_ok=True)
        command = self._engine.command(self._spec, self._place)
        announce(ev.ServerLaunching(self._place.token, self._place.port, self._place.gpus))
        self._launched_at_s = time.monotonic()
        self._process = await self._tools.supervisor.launch(command, self._log)
        self._session = self._process.session
        url = self._engine.url(self._spec, self._place)
        session = self._session
        return ev.ServerLaunched(
            session.pid, session.session_id, session.start_ticks, url, command.argv, dict(command.env), str(self._log), session.boot_id
        )

    async def launch_settled(self) -> None:
        """Returns when no launch is half-way: its process, if there is one, is known."""
        await self._settled.wait()

    def watch_exit(self, tasks: asyncio.TaskGroup, report: Callable[[ev.ServerFailed], None]) -> None:
        """Report the server's death once, unless we are the ones who stop it."""
        process = self._process
        if process is None:
            return

        async def watch() -> None:
            exit_code = await process.wait()
            if not self._stopping:
                report(await asyncio.to_thread(self._death, exit_code))

        tasks.create_task(watch())

    def _death(self, exit_code: int) -> ev.ServerFailed:
        failure_class, cause = self._engine.explain(self._log, exit_code)
        kind = kind_of(failure_class)
        message = f"server exited with {exit_code}: {cause or 'its log names no cause'}"
        return ev.ServerFailed(kind, failure_class, message, exit_code, evidence.tail(self._log))

    # Ready, proof

    async def await_ready(self, deadline_s: float) -> ev.Body:
        """ServerReady once it is healthy, itself and has completed a request, else ServerFailed at the deadline (monotonic seconds)."""
        missing, pause_s, looked_at_s = "nothing answered yet", _FIRST_LOOK_S, 0.0
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                while True:
                    looked_at_s = time.monotonic()
                    missing = await self._look()
                    if not missing:
                        return ev.ServerReady(time.monotonic() - self._launched_at_s if self._launched_at_s else 0.0)
                    looked_at_s = 0.0
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 1.3, _LAST_LOOK_S)
        except ServerFailed as error:
            return self._failed(error)
        except TimeoutError:
            if looked_at_s and time.monotonic() - looked_at_s > 1:  # the look before it tells what was, not what is
                missing = self._silent(time.monotonic() - looked_at_s)
            return ev.ServerFailed(
                ErrorKind.SERVER_UNHEALTHY,
                "not_ready",
                f"not ready within {self._spec.engine.ready_timeout_s:g} s; last look: {missing}",
                log_tail=evidence.tail(self._log),
            )

    async def _look(self) -> str:
        """What is missing, empty when nothing is; a look that takes too long is one of many, not the end."""
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                return await self._engine.ready(self._spec, self._url)
        except TimeoutError:
            return self._silent(_LOOK_LIMIT_S)

    def _silent(self, seconds: float) -> str:
        return f"{self._url} has not answered for {seconds:.0f} s"

    async def prove(self) -> ev.Body:
        """ConfigurationProved with the host's fingerprint, or ServerFailed when the server stopped answering."""
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                proof = await self._engine.prove(self._spec, self._url, self._log)
        except ServerFailed as error:
            return self._failed(error)
        except TimeoutError:
            return ev.ServerFailed(ErrorKind.SERVER_UNHEALTHY, "unhealthy", f"{self._url} did not show its configuration in time")
        self._flags = tuple(gate for gate in proof.gates if gate.effect is GateEffect.FLAG)
        self._is_sglang = self._is_sglang or "sglang" in proof.versions
        return replace(proof, fingerprint=dict(self._tools.fingerprint))

    def _failed(self, error: ServerFailed) -> ev.ServerFailed:
        return ev.ServerFailed(
            error.kind, error.failure_class, error.message, error.server_exit_code, error.log_tail or evidence.tail(self._log)
        )

    # Load

    async def warm_up(self, workload: Workload) -> ev.Body:
        """WarmedUp with the rate seen, which counts for nothing, or LoadFailed."""
        requests = self._spec.measure.warmup_requests or max(1, workload.concurrency)
        try:
            reply = await self._tools.load.warm(replace(self._request(workload, 0), requests=requests, parquet=""))
        except LoadFailed as error:
            return ev.LoadFailed(workload.name, error.message)
        return ev.WarmedUp(workload.name, reply.requests_ok, reply.metrics.get("output_tok_s", 0.0))

    async def measure(self, workload: Workload, index: int) -> ev.Body:
        """RunFinished with metrics, gates and the raw data's digest, or LoadFailed when our own measuring broke."""
        try:
            reply = await self._tools.load.run(self._request(workload, index))
        except LoadFailed as error:
            return ev.LoadFailed(workload.name, error.message)
        gates = (*run_gates(RunFacts(**reply.facts), workload, self._spec.measure), *self._flags)
        artifact = evidence.artifact(Path(reply.parquet.path), self._artifact_root, sha256=reply.parquet.sha256)
        return ev.RunFinished(
            RunResult(
                workload=workload.name,
                index=index,
                started_unix_ns=reply.started_unix_ns,
                duration_s=reply.duration_s,
                time_scale=self._time_scale,
                requests_ok=reply.requests_ok,
                requests_failed=reply.requests_failed,
                output_tokens=reply.output_tokens,
                metrics=reply.metrics,
                gates=gates,
                artifact=artifact,
            )
        )

    def _request(self, workload: Workload, index: int) -> LoadRequest:
        spec = self._spec
        metadata = {"job": spec.job_id, "trial": spec.trial_id, "attempt": str(spec.attempt), "variant": spec.variant}
        return LoadRequest(
            url=self._url,
            workload=workload,
            seed=spec.measure.seed,
            run_index=index,
            sglang=self._is_sglang,
            flush=spec.engine.kind is not EngineKind.EXTERNAL,
            model=spec.engine.model_path,
            time_scale=self._time_scale,
            speculation=bool(spec.engine.args.get("speculative_algorithm")),
            parquet=str(self._folder / f"{evidence.safe(workload.name)}-{index:03d}.parquet"),
            metadata=metadata,
            salt_scope=spec.job_id if spec.engine.kind is EngineKind.EXTERNAL else "",
        )

    # End

    async def collect(self) -> ev.Body:
        """EvidenceCollected with what could be read; a dead server has a log all the same."""
        if self._engine.launches or self._spec.engine.url:
            await evidence.scrape(self._url, self._folder / "metrics.txt")
        artifacts = await asyncio.to_thread(evidence.gather, self._folder, self._artifact_root)
        return ev.EvidenceCollected(artifacts)

    async def stop(self) -> ev.Body:
        """ServerStopped with the proof that nothing of the server is left; harmless without a server."""
        self._stopping = True
        await self.launch_settled()
        session = self._session or await asyncio.to_thread(self._tools.supervisor.find_by_token, self._place.token)
        if session is None:
            return ev.ServerStopped()
        stopped = await self._tools.supervisor.stop(session, self._spec.engine.stop_timeout_s)
        self._session = session if stopped.left_over else None
        return stopped

    def adopt(self, launched: ev.ServerLaunched) -> None:
        """Take over the server that an earlier agent process recorded, only to end it."""
        self._session = RecordedSession(
            launched.pid, launched.session_id, launched.start_ticks, self._place.token, launched.log_path, launched.boot_id
        )

    async def close(self, order: CloseTrial) -> ev.Body:
        """TrialOver with the content of the order; the port is free again."""
        self.forget()
        return ev.TrialOver(order.outcome, order.kind, order.failure_class, order.message)

    def forget(self) -> None:
        """Give back the port."""
        self._tools.ports.give_back(self._place.token)

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    @property
    def _artifact_root(self) -> Path:
        return self._folder.parent.parent

    @property
    def _url(self) -> str:
        return self._engine.url(self._spec, self._place)

    @property
    def _time_scale(self) -> float:
        return self._spec.engine.simulation.time_scale if self._spec.engine.kind == EngineKind.SIMULATED else 1.0


