"""A second implementation of the agent's gRPC contract, with a journal in memory and a script in
place of servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from grpc import aio

from fleet_protos import events as ev
from fleet_protos.codec import from_proto, to_proto
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.protocol_version import PROTOCOL
from fleet_protos.trial_types import Artifact, Outcome, Phase, RunResult, TrialSpec
from fleet_protos.v1 import agent_pb2 as pb
from fleet_protos.v1 import agent_pb2_grpc, trial_pb2
from fleet_transport.sockets import bind_server

CHUNK = 1000


def run_of(
    spec: TrialSpec, index: int, tok_s: float = 80.0, artifact: Artifact | None = None
) -> ev.RunFinished:
    """A finished run of the trial's first workload."""
    metrics = {"output_tok_s": tok_s, "tpot_s_mean": 1 / tok_s}
    name = spec.workloads[0].name
    return ev.RunFinished(
        RunResult(name, index, 1, 5.0, 20.0, 1, 0, 500, metrics, (), artifact or Artifact())
    )


@dataclass
class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Takes trials and tells what a test makes it tell. `refusals` are answered to StartTrial
    first, one each.
    """

    address: str
    host: str = "here"
    agent_id: str = "agent-1"
    simulated_gpus: int = 8
    server_env: dict[str, str] = field(default_factory=dict)  # the host's own, for every server
    by_itself: bool = True  # run each trial to its end: three runs, ok
    replays: bool = False  # ignore after_sequence, as a forgetful agent would
    refusals: list[grpc.StatusCode] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    break_after: int = -1  # chunks of the next artifact before the stream breaks
    damage: bool = False  # of one chunk of the next artifact
    labels: dict[str, str] = field(default_factory=dict)
    hangs: bool = False  # StartTrial is never answered
    holds_acknowledgements: bool = False  # AckEvents that tell of an event are never answered
    obeys_another: bool = (
        False  # it belongs to another controller: no order is obeyed, no event told
    )
    protocol: int = PROTOCOL
    ahead_s: float = 0.0  # of its clock, before that of this machine
    takes_no_trials: str = ""
    kept: list[str] = field(default_factory=list)  # TRIAL/ATTEMPT whose files wait to be released
    extra: bytes = b""  # appended to each event on the wire, as a newer agent's fields would be
    is_old: bool = False  # CheckHost is not known
    findings: list[pb.HostFinding] = field(default_factory=list)  # of CheckHost

    def __post_init__(self) -> None:
        self.journal: list[ev.Event] = []
        self.started: list[TrialSpec] = []
        self.cancelled: list[tuple[str, int]] = []
        self.leases: list[ControllerEpoch] = []  # of each order, in turn
        self.released: list[str] = []
        self.described = 0
        self.acknowledged = 0
        self.asked_to_check = asyncio.Event()
        self.acknowledgements = 0
        self.asked_to_acknowledge = asyncio.Event()
        self.offsets: list[int] = []
        self._changed = asyncio.Event()
        self._server: aio.Server | None = None

    async def up(self) -> None:
        """Listen; again after `down` with the same journal."""
        self._server = aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        bind_server(self._server, self.address)
        await self._server.start()

    async def down(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            await self._server.stop(grace=None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address.removeprefix("unix:"))

    def tell(self, spec: TrialSpec, body: ev.Body | None, phase: Phase = Phase.MEASURING) -> None:
        """Journal an event and send it to whoever watches; None: one of a kind that nobody knows
        yet.
        """
        at_ns = time.time_ns() + round(self.ahead_s * 1e9)
        self.journal.append(
            ev.Event(len(self.journal) + 1, at_ns, spec.trial_id, spec.attempt, 0, phase, body)
        )
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self, spec: TrialSpec, over: ev.TrialOver | None = None) -> None:
        """The trial's last event."""
        self.tell(spec, over or ev.TrialOver(Outcome.OK), Phase.OVER)

    async def Describe(self, request: Any, context: Any) -> pb.DescribeResponse:
        self.described += 1
        return pb.DescribeResponse(
            agent_id=self.agent_id, host=self.host, simulated_gpus=self.simulated_gpus, last_sequence=len(self.journal), pid=1,
            labels=self.labels, protocol=self.protocol, now_unix_ns=time.time_ns() + round(self.ahead_s * 1e9),
            takes_no_trials=self.takes_no_trials, kept_attempts=self.kept, active_trials=self.active(),
        )  # fmt: skip

    def active(self) -> list[str]:
        """TRIAL/ATTEMPT that its journal holds as begun and not as over."""
        over = {
            (event.trial_id, event.attempt)
            for event in self.journal
            if isinstance(event.body, ev.TrialOver)
        }
        begun = [
            (event.trial_id, event.attempt)
            for event in self.journal
            if isinstance(event.body, ev.TrialAccepted)
        ]
        return [
            f"{trial_id}/{attempt}"
            for trial_id, attempt in begun
            if (trial_id, attempt) not in over
        ]

    async def StartTrial(self, request: Any, context: Any) -> pb.StartTrialResponse:
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusals:
            await context.abort(self.refusals.pop(0), "not now")
        self.leases.append(from_proto(ControllerEpoch, request.lease))
        spec = from_proto(TrialSpec, request.spec)
        if spec in self.started:
            return pb.StartTrialResponse(known=True)
        self.started.append(spec)
        env = {**self.server_env, **spec.engine.env}
        admitted = replace(spec, engine=replace(spec.engine, env=env))
        self.tell(spec, ev.TrialAccepted(admitted), Phase.LAUNCHING)
        if self.by_itself:
            for index in (1, 2, 3):
                self.tell(spec, run_of(spec, index))
            self.end(spec)
        return pb.StartTrialResponse(known=False)

    async def CheckHost(self, request: Any, context: Any) -> pb.CheckHostResponse:
        self.asked_to_check.set()
        if self.is_old:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not known")
        return pb.CheckHostResponse(findings=self.findings)

    async def CancelTrial(self, request: Any, context: Any) -> pb.CancelTrialResponse:
        self.cancelled.append((request.trial_id, request.attempt))
        spec = next(
            (
                spec
                for spec in self.started
                if (spec.trial_id, spec.attempt) == (request.trial_id, request.attempt)
            ),
            None,
        )
        if spec is None:
            return pb.CancelTrialResponse(active=False)
        self.end(spec, ev.TrialOver(Outcome.CANCELLED, message=request.reason))
        return pb.CancelTrialResponse(active=True)

    async def WatchEvents(
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        if request.agent_id and request.agent_id != self.agent_id:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another agent")
        await self._refuse_strangers(context, after_s=0.5)
        sent = 0 if self.replays else request.after_sequence
        while True:
            changed = self._changed
            for event in self.journal[sent:]:
                sent = event.sequence
                wire = to_proto(event, trial_pb2.Event()).SerializeToString() + self.extra
                yield pb.WatchEventsResponse(event=trial_pb2.Event.FromString(wire))
            await changed.wait()

    async def _refuse_strangers(self, context: Any, after_s: float = 0.0) -> None:
        if self.obeys_another:
            await asyncio.sleep(after_s)
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "this host belongs to controller a01e — end that one first",
            )

    async def AckEvents(self, request: Any, context: Any) -> pb.AckEventsResponse:
        await self._refuse_strangers(context)
        if not request.up_to_sequence:  # it only asks whether it is obeyed
            return pb.AckEventsResponse()
        self.acknowledgements += 1
        self.asked_to_acknowledge.set()
        if self.holds_acknowledgements:
            await asyncio.Event().wait()
        self.acknowledged = max(self.acknowledged, request.up_to_sequence)
        return pb.AckEventsResponse()

    async def ReleaseAttempt(self, request: Any, context: Any) -> pb.ReleaseAttemptResponse:
        name = f"{request.trial_id}/{request.attempt}"
        self.released.append(name)
        self.kept = [kept for kept in self.kept if kept != name]
        return pb.ReleaseAttemptResponse()

    async def FetchArtifact(
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.FetchArtifactResponse]:
        self.offsets.append(request.offset)
        if request.name not in self.files:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no artifact {request.name}")
        content = self.files[request.name]
        for number, offset in enumerate(range(request.offset, len(content), CHUNK)):
            if number == self.break_after:
                self.break_after = -1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the line broke")
            data = content[offset : offset + CHUNK]
            digest = hashlib.sha256(data).hexdigest()
            if self.damage:
                self.damage, data = False, b"?" + data[1:]
            yield pb.FetchArtifactResponse(offset=offset, data=data, sha256=digest)
