"""Owns what the crash tests share: a small job, a running `fleetctl run`, its processes by id, and
what is left of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from fleet_protos.codec import from_proto
from fleet_protos.events import Event
from fleet_protos.v1 import agent_pb2, agent_pb2_grpc
from fleet_transport.sockets import listen_address

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: crash
model: {path: sim/kimi}
engine:
  kind: simulated
  gpus: 8
  args: {tp_size: 8}
  stop_timeout: 5s
  simulation: {time_scale: 20, seed: 3}
factors:
  nccl:
    default: {}
    tuned: {env: {NCCL_PROTO: LL, NCCL_ALGO: Ring, NCCL_P2P_LEVEL: SYS}}
baseline: {nccl: default}
workloads:
  single: {concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: 400}
measure: {launches: 2, runs: {min: 3, max: 3}, seed: 1}
"""
LIMIT_S = 150.0


class Running:
    """One `fleetctl run` in a state folder of its own."""

    def __init__(self, folder: Path, job: str = JOB) -> None:
        self.state = folder / "state"
        self.job = folder / "job.yaml"
        # so that no other job's servers are taken for this one's
        self.name = f"crash-{uuid.uuid4().hex[:8]}"
        self.job.write_text(job.replace("name: crash\n", f"name: {self.name}\n"))
        self.process = self.fleetctl("run", str(self.job))

    def fleetctl(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command on this state folder; its output is text on a pipe."""
        argv = [sys.executable, "-m", "fleet_controller.cli.main", *arguments]
        env = {**os.environ, "BENCHFLEET_STATE": str(self.state)}
        return subprocess.Popen(
            argv,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def answer(self, *arguments: str) -> dict:
        """The JSON of a command that ends by itself."""
        process = self.fleetctl(*arguments, "--json")
        output, _ = process.communicate(timeout=60)
        return json.loads(output)

    def finish(self, process: subprocess.Popen[str] | None = None) -> str:
        """Wait for a command to end; its whole output. Fails the test when it does not."""
        output, _ = (process or self.process).communicate(timeout=LIMIT_S)
        return output

    def events(self, wanted: Callable[[Event], bool], limit_s: float = 90.0) -> list[Event]:
        """The agent's events up to the first that is `wanted`, read from the agent itself; waits
        for them.
        """
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            seen = []
            try:
                for event in self._stream(deadline_s):
                    seen.append(event)
                    if wanted(event):
                        return seen
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
        raise AssertionError(f"no such event within {limit_s:g} s")

    def _stream(self, deadline_s: float) -> Iterator[Event]:
        with grpc.insecure_channel(listen_address(self.state / "agent", "agent")) as channel:
            grpc.channel_ready_future(channel).result(
                timeout=max(0.1, deadline_s - time.monotonic())
            )
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            for answer in stub.WatchEvents(
                agent_pb2.WatchEventsRequest(), timeout=max(0.1, deadline_s - time.monotonic())
            ):
                yield from_proto(Event, answer.event)

    def agent_pid(self) -> int:
        """The agent says it itself."""
        with grpc.insecure_channel(listen_address(self.state / "agent", "agent")) as channel:
            return (
                agent_pb2_grpc.AgentServiceStub(channel)
                .Describe(agent_pb2.DescribeRequest(), timeout=10)
                .pid
            )

    def left_over(self) -> list[str]:
        """Processes that carry this state folder or a launch token of this job and are still there."""
        return [
            line
            for line in processes()
            if str(self.state) in line or f"BENCHFLEET_LAUNCH={self.name}" in line
        ]


def processes() -> list[str]:
    """`pid command line environment` of each process that can be read, ourselves excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + b" " + (entry / "environ").read_bytes()
            except OSError:
                continue
            found.append(f"{entry.name} " + text.replace(b"\0", b" ").decode(errors="replace"))
    return found


def children(pid: int) -> list[int]:
    """All descendants of a process, by their parents."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found, edge = [], [pid]
    while edge:
        edge = [child for child, parent in parents.items() if parent in edge]
        found += edge
    return found
