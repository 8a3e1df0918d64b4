r"""Runs the simulated server as a process: command line, socket, signals and simulated faults.

    python -m fleet_simulator.server --model-path M --port P [any SGLang argument] \
        --simulation '{"time_scale": 20, "launch": "TRIAL/ATTEMPT"}'
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_protos.trial_types import Simulation
from fleet_simulator import server_args
from fleet_simulator.api import Api, DecodeRates, ServerSetup
from fleet_simulator.batching import Batching, Generation
from fleet_simulator.http_server import REASONS, HttpConnection, HttpRequest
from fleet_simulator.noise import drift_factor, launch_factor, run_factor
from fleet_simulator.rendezvous import Rendezvous
from fleet_simulator.server_log import ServerLog
from fleet_simulator.time_model import TimingConfiguration
from fleet_simulator.timerfd import TimerFd


@dataclass(frozen=True, slots=True)
class ServerStart:
    """Holds how the server was started, as read from its command line and environment."""

    args: Mapping[str, Any]
    warnings: list[str]
    simulation: Simulation
    launch: str
    nccl: Mapping[str, str]
    command: str


def parse_start(argv: Sequence[str], env: Mapping[str, str]) -> ServerStart:
    """Return how the server was started. Raises ValueError if the command line is invalid."""
    given = server_args.read_config(server_args.parse(argv))
    raw = given.pop("simulation", "{}")
    knobs = json.loads(raw) if isinstance(raw, str) else {}
    launch = str(knobs.pop("launch", ""))
    if not given.get("model_path"):
        raise ValueError("the following arguments are required: --model-path/--model")
    try:
        simulation = Simulation(**{**knobs, "lost_env": tuple(knobs.get("lost_env", ()))})
        args, warnings = server_args.resolve(given)
    except TypeError as error:
        raise ValueError(f"argument value: {error}") from error
    if simulation.time_scale <= 0:
        raise ValueError("argument --simulation: time_scale must be above 0")
    nccl = {
        name: value
        for name, value in env.items()
        if name.startswith("NCCL_") and name not in simulation.lost_env
    }
    # SGLang 0.5.4 and later set both where they are unset.
    nccl = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", **nccl}
    return ServerStart(args, warnings, simulation, launch, nccl, shlex.join(argv))


class SimulatedServer:
    """Runs one simulated server on one listening socket."""

    def __init__(self, start: ServerStart, loop: asyncio.AbstractEventLoop) -> None:
        self._start = start
        self._loop = loop
        self._log = ServerLog()
        self._started_s = time.monotonic()
        self._started_unix_s = time.time_ns() / 1e9
        knobs = start.simulation
        self._launch_factor = launch_factor(knobs.seed, start.launch, knobs.launch_noise)
        configuration = TimingConfiguration(
            int(start.args["tp_size"]), start.nccl, server_args.speculation(start.args)
        )
        setup = ServerSetup(start.args, start.command, knobs)
        self._setup = setup
        self._batching = Batching(
            configuration,
            setup.cap,
            knobs.time_scale,
            self._noise_factor,
            f"{knobs.seed}:{start.launch}",
        )
        self._batching.on_prefill = self._log_prefill
        self._batching.on_decode = self._log_decode
        self._timer = TimerFd(loop, self._wake)
        self._api = Api(setup, self._batching, self._submit, loop.call_later)
        self._last_decode_line = (self._started_s, 0, 0)
        self.stopped: asyncio.Future[int] = loop.create_future()

    async def serve(self) -> int:
        """Serve until stopped. Return the exit code: 0 after SIGTERM or SIGINT, 1 if another node
        has ended.

        Raises OSError if the port is taken.
        """
        self._log.log_start(
            self._start.args, self._start.warnings, self._start.simulation.time_scale
        )
        self._on_signals()
        host, port = str(self._start.args["host"]), int(self._start.args["port"])
        listener = await self._loop.create_server(
            lambda: HttpConnection(self._api.serve, self._access), host, port, backlog=2048
        )
        self._log.write(
            f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit) (simulated)"
        )
        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(self._load())
            code = await self.stopped
            loading.cancel()
        listener.close()
        return code

    async def _load(self) -> None:
        """Become ready after the load time. A server with several nodes first waits for all of
        them, and stops when one of them ends.
        """
        nodes = int(self._start.args["nnodes"])
        rendezvous = Rendezvous(self._start.args) if nodes > 1 else None
        if rendezvous:
            address = self._start.args["dist_init_addr"]
            self._log.write(
                f"Init torch distributed begin. (simulated: {nodes} nodes connect at {address})"
            )
            await rendezvous.wait_complete()
        self._loop.call_later(self._start.simulation.ready_after_s, self._become_ready)
        if rendezvous:
            self._on_peer_lost(await rendezvous.wait_lost())

    def _on_peer_lost(self, peer: str) -> None:
        if not self.stopped.done():
            self._log.log_peer_lost(peer)
            self.stopped.set_result(1)

    def _on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._terminate, number)

    def _terminate(self, number: int) -> None:
        if self._start.simulation.ignore_term:
            self._log.write(
                f"{signal.Signals(number).name} received and ignored (simulation: ignore_term)."
            )
            return
        self._log.write(
            f"{signal.Signals(number).name} received. Draining requests and shutting down..."
        )
        if not self.stopped.done():
            self.stopped.set_result(0)

    def _become_ready(self) -> None:
        self._log.log_load(self._start.args, self._start.simulation.ready_after_s)
        self._log.log_nccl(self._start.nccl)
        self._api.ready = True
        self._log.write("The server is fired up and ready to roll!")
        if self._start.simulation.crash_after_s > 0:
            self._loop.call_later(
                self._start.simulation.crash_after_s, os.kill, os.getpid(), signal.SIGKILL
            )

    def _submit(self, generation: Generation) -> None:
        self._timer.set(self._batching.submit(generation, time.monotonic()))

    def _wake(self) -> None:
        next_s = self._batching.wake(time.monotonic())
        if next_s is not None:
            self._timer.set(next_s)

    def _noise_factor(self, at_s: float) -> float:
        knobs = self._start.simulation
        model_s = (at_s - self._started_s) * knobs.time_scale
        unix_s = self._started_unix_s + at_s - self._started_s
        drift = drift_factor(knobs.seed, knobs.drift_per_hour, unix_s * knobs.time_scale / 3600)
        return (
            self._launch_factor
            * drift
            * run_factor(knobs.seed, self._start.launch, knobs.run_noise, model_s)
        )

    def _access(self, request: HttpRequest, status: int) -> None:
        self._log.log_access(
            request.peer,
            f"{request.method} {request.target}",
            f"{status} {REASONS.get(status, '')}",
        )

    def _log_prefill(self, admitted: list[Generation]) -> None:
        cached = sum(generation.cached_tokens for generation in admitted)
        new = sum(generation.prompt_tokens for generation in admitted) - cached
        running, queued = len(self._batching.running) - len(admitted), len(self._batching.waiting)
        self._log.log_prefill(
            sequences=len(admitted), new=new, cached=cached, running=running, queued=queued
        )

    def _log_decode(self, at_s: float) -> None:
        totals = self._batching.totals
        if totals.decode_steps % int(self._start.args["decode_log_interval"]):
            return
        then_s, tokens_then, verified_then = self._last_decode_line
        self._last_decode_line = (at_s, totals.generated_tokens, totals.verify_steps)
        tokens = totals.generated_tokens - tokens_then
        verified = totals.verify_steps - verified_then
        length = tokens / verified if verified else 0.0
        most = self._setup.draft_tokens - 1
        elapsed_model_s = (at_s - then_s) * self._start.simulation.time_scale
        self._api.rates = DecodeRates(
            tokens / elapsed_model_s, length, max(length - 1, 0.0) / most if most > 0 else 0.0
        )
        running = self._batching.running
        self._log.log_decode(
            running=len(running),
            queued=len(self._batching.waiting),
            tokens=sum(generation.prompt_tokens + generation.done for generation in running),
            accept=(length, self._api.rates.accept_rate) if verified else None,
            tok_s=self._api.rates.gen_throughput,
        )


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of uvloop, or of asyncio if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def main() -> int:
    """Run the server and return its exit code: 0 after SIGTERM or SIGINT, 1 if the port is taken or
    another node has ended, 2 for an invalid command line.
    """
    try:
        start = parse_start(sys.argv[1:], os.environ)
    except ValueError as error:
        sys.stderr.write(f"server.py: error: {error}\n")
        return 2
    loop = new_loop()
    try:
        return loop.run_until_complete(SimulatedServer(start, loop).serve())
    except (OSError, socket.gaierror) as error:
        sys.stderr.write(f"ERROR:    {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
