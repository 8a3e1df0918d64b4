"""The gRPC client of one agent. It converts messages to values and gRPC errors to FleetError."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
from grpc import aio

from fleet_controller.core.controller_api import HostFinding
from fleet_controller.core.event_rules import agent_info_error
from fleet_controller.core.trial_state import NO_SKEW, HostClock
from fleet_controller.hosts.event_validation import EventValidator
from fleet_protos.codec import from_proto, to_proto
from fleet_protos.controller_epoch import ControllerEpoch, names_controller
from fleet_protos.errors import (
    Conflict,
    HostUnreachable,
)
from fleet_protos.events import Event
from fleet_protos.grpc_errors import error_class
from fleet_protos.trial_types import Artifact, TrialSpec
from fleet_protos.v1 import agent_pb2 as pb
from fleet_protos.v1 import agent_pb2_grpc, trial_pb2
from fleet_protos.v1.agent_values import AgentInfo
from fleet_transport.tls_client import ReloadingChannel
from fleet_transport.tls_identity import TlsFiles

_CALL_S = 15.0
_LOAD_CALL_S = 5.0  # short, because other hosts wait while one may have lost its network
_CHUNK_S = 60.0
_CHECK_S = 30.0  # the parts of a check have shorter limits
_OPTIONS = [
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # This limit (60 s by default) decides where no TCP timeout applies, as at the end of a tunnel.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Short, so that an agent that was just started is reached at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", 16 << 20),
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadPart:
    """What a host needs to know to join the load cluster of an attempt. The fields are those of
    `JoinLoadRequest`. The repr leaves out secrets.
    """

    trial_id: str
    attempt: int
    host: str
    address: str
    lead_address: str = ""
    cores: int = 0
    hold_limit_s: float = 0.0
    token: str = field(default="", repr=False)
    authority: bytes = field(default=b"", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


class AgentClient:
    """A client of one agent at one address. Its calls raise HostUnreachable, Conflict or
    ConfigError, and never a gRPC error.

    With `tls`, the client accepts only an agent that has a certificate for the DNS name `name`.
    Without `tls`, the client connects only to addresses on this machine.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None, name: str = "") -> None:
        self.address = address
        self.display_name = f"agent at {address}"  # in messages
        self._transport = ReloadingChannel(address, tls, name, _OPTIONS)
        self._target = (address, tls, name)
        self._channel_stub: tuple[aio.Channel, agent_pb2_grpc.AgentServiceAsyncStub] | None = None
        self.controller_epoch = ControllerEpoch()  # sent with each order once it is set
        self._last_sequence = 0  # of its events, at the last `describe`
        self.clock = NO_SKEW  # the host's clock at the last `describe`

    async def retarget(
        self, address: str, tls: TlsFiles | None, name: str, display_name: str = ""
    ) -> None:
        """Use this address, these TLS files and this name from now on. The channel is closed only
        if one of the three has changed.
        """
        if (address, tls, name) != self._target:
            previous, self._transport = (
                self._transport,
                ReloadingChannel(address, tls, name, _OPTIONS),
            )
            self.address, self._target = address, (address, tls, name)
            self.display_name = display_name or f"agent at {address}"
            await previous.close()

    @property
    def _stub(self) -> agent_pb2_grpc.AgentServiceAsyncStub:
        channel = self._transport.channel()
        if self._channel_stub is None or self._channel_stub[0] is not channel:
            self._channel_stub = channel, agent_pb2_grpc.AgentServiceStub(channel)
        return self._channel_stub[1]

    async def describe(self) -> AgentInfo:
        """Return what the agent reports about itself, and update `clock`. This is the first call of
        a connection. If the call fails, the error explains why.
        """
        await self._transport.refresh()
        asked_ns = time.time_ns()
        try:
            info = from_proto(
                AgentInfo,
                await self._call(self._stub.Describe(pb.DescribeRequest(), timeout=_CALL_S)),
            )
            if fault := agent_info_error(
                info.agent_id, info.host, {**info.labels, **info.fingerprint}
            ):
                raise Conflict(
                    f"agent at {self.address}: {fault}",
                    "check which program answers there; a benchfleet agent reports no such thing",
                )
            self._last_sequence = info.last_sequence
            self.clock = (
                HostClock(info.now_unix_ns - (asked_ns + time.time_ns()) // 2)
                if info.now_unix_ns
                else NO_SKEW
            )
            return info
        except HostUnreachable as error:
            if reason := await self._transport.explain_failure():
                raise HostUnreachable(f"{self.display_name}: {reason}") from error
            raise

    async def present_epoch(self, agent_id: str) -> None:
        """Present the epoch of this controller without acknowledging events. If the host follows
        another controller, raises Conflict with the name of that controller.
        """
        await self.acknowledge(0, agent_id)

    async def start(self, spec: TrialSpec) -> bool:
        """Order the agent to start a trial. Return whether the agent had the trial already. Raises
        Conflict while the trial's GPUs are in use. Raises Superseded if a newer attempt exists.
        """
        request = pb.StartTrialRequest(
            spec=to_proto(spec, trial_pb2.TrialSpec()), lease=self._epoch_message
        )
        return (await self._call(self._stub.StartTrial(request, timeout=_CALL_S))).known

    async def cancel(self, trial_id: str, attempt: int, reason: str) -> bool:
        """Ask the agent to end a trial. Return False if the trial is not active there."""
        request = pb.CancelTrialRequest(
            trial_id=trial_id, attempt=attempt, reason=reason, lease=self._epoch_message
        )
        return (await self._call(self._stub.CancelTrial(request, timeout=_CALL_S))).active

    async def join_load(self, part: LoadPart) -> str:
        """Make the host join the load cluster of an attempt. Return HOST:PORT of the lead's Ray.
        Raises Superseded, ConfigError, Conflict.
        """
        request = to_proto(part, pb.JoinLoadRequest(lease=self._epoch_message))
        return (await self._call(self._stub.JoinLoad(request, timeout=_LOAD_CALL_S))).lead_address

    async def leave_load(self, trial_id: str, attempt: int) -> bool:
        """Make the host leave the load cluster of an attempt. Return False if it had not joined."""
        request = pb.LeaveLoadRequest(trial_id=trial_id, attempt=attempt, lease=self._epoch_message)
        return (await self._call(self._stub.LeaveLoad(request, timeout=_LOAD_CALL_S))).joined

    async def events(self, agent_id: str, after_sequence: int) -> AsyncIterator[Event]:
        """Yield the events after sequence number `after_sequence` until cancelled. Raises Conflict
        if another agent answers at the address.
        """
        request = pb.WatchEventsRequest(
            agent_id=agent_id, after_sequence=after_sequence, lease=self._epoch_message
        )
        validator = EventValidator(self.address, max(after_sequence, self._last_sequence))
        try:
            async for answer in self._stub.WatchEvents(request):
                if (event := validator.validate(answer.event)) is not None:
                    yield event
        except (aio.AioRpcError, asyncio.CancelledError) as error:
            raise self._translate_error(error) from error

    async def acknowledge(self, up_to_sequence: int, agent_id: str = "") -> None:
        """Acknowledge all events of that agent up to this sequence number. Raises Conflict if
        another agent answers.
        """
        request = pb.AckEventsRequest(
            up_to_sequence=up_to_sequence, lease=self._epoch_message, agent_id=agent_id
        )
        await self._call(self._stub.AckEvents(request, timeout=_CALL_S))

    async def release(self, trial_id: str, attempt: int) -> None:
        """Allow the host to delete the files of an ended attempt, because the controller has stored
        all of them. An agent of an older version ignores this and keeps the files.
        """
        request = pb.ReleaseAttemptRequest(
            trial_id=trial_id, attempt=attempt, lease=self._epoch_message
        )
        await self._call(self._stub.ReleaseAttempt(request, timeout=_CALL_S))

    async def fetch(self, artifact: Artifact, target: Path) -> None:
        """Download a file to `target`. An interrupted download continues after the bytes that have
        arrived. The file appears at `target` only if its digest matches.

        Raises NotFound if the agent no longer has the file. Raises Conflict if the file cannot be
        written here.
        """
        partial = target.with_name(target.name + ".partial")
        try:
            descriptor, offset = await asyncio.to_thread(
                _open_partial, partial, artifact.size_bytes
            )
            try:
                await self._receive(
                    pb.FetchArtifactRequest(name=artifact.name, offset=offset), artifact, descriptor
                )
            finally:
                os.close(descriptor)
            await asyncio.to_thread(_verify_and_publish, partial, target, artifact)
        except OSError as error:
            raise Conflict(
                f"cannot write {target}: {error.strerror}",
                "free some disk space; the controller then fetches the file again",
            ) from error

    async def _receive(
        self, request: pb.FetchArtifactRequest, artifact: Artifact, descriptor: int
    ) -> None:
        try:
            async for chunk in self._stub.FetchArtifact(
                request, timeout=_CHUNK_S + artifact.size_bytes / 1e6
            ):
                _check_chunk(chunk, artifact)
                await asyncio.to_thread(_write_at, descriptor, chunk.offset, chunk.data)
        except (aio.AioRpcError, asyncio.CancelledError) as error:
            raise self._translate_error(error) from error

    async def check_host(self) -> tuple[HostFinding, ...]:
        """Return what prevents trials on the host, checked now. If the agent is too old for this
        check, return a single warning that says so.
        """
        try:
            answer = await self._stub.CheckHost(pb.CheckHostRequest(), timeout=_CHECK_S)
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise self._translate_error(error) from error
            return (
                HostFinding(
                    "not_looked_at",
                    "warning",
                    "the agent is too old to check its host",
                    "`fleetctl deploy` updates it",
                ),
            )
        return tuple(from_proto(HostFinding, finding) for finding in answer.findings)

    @property
    def _epoch_message(self) -> pb.Lease | None:
        return (
            to_proto(self.controller_epoch, pb.Lease())
            if names_controller(self.controller_epoch)
            else None
        )

    async def close(self) -> None:
        """Close the channel."""
        await self._transport.close()

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except (aio.AioRpcError, asyncio.CancelledError) as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: aio.AioRpcError | asyncio.CancelledError) -> BaseException:
        """Return the error to raise. If a channel was closed, gRPC cancels its calls. Such a
        cancellation becomes HostUnreachable, because nobody cancelled the waiting task.
        """
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            return (
                error
                if task is None or task.cancelling()
                else HostUnreachable(f"{self.display_name}: the channel was re-created")
            )
        kind = error_class(error.code())
        details = error.details() or error.code().name.lower()
        return kind(
            f"{self.display_name}: {details.rpartition('Failed to connect to remote host: ')[2]}"
        )


def _open_partial(partial: Path, size_bytes: int) -> tuple[int, int]:
    """Return a descriptor of the unfinished file and the number of bytes that an earlier download
    wrote.
    """
    partial.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    offset = min(os.fstat(descriptor).st_size, size_bytes)
    os.ftruncate(descriptor, offset)
    return descriptor, offset


def _check_chunk(chunk: pb.FetchArtifactResponse, artifact: Artifact) -> None:
    if chunk.offset + len(chunk.data) > artifact.size_bytes:
        raise HostUnreachable(
            f"artifact {artifact.name} is longer than the {artifact.size_bytes} bytes "
            "that the agent reported"
        )
    if hashlib.sha256(chunk.data).hexdigest() != chunk.sha256:
        raise HostUnreachable(
            f"artifact {artifact.name}: a chunk at byte {chunk.offset} arrived damaged"
        )


def _write_at(descriptor: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _verify_and_publish(partial: Path, target: Path, artifact: Artifact) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != artifact.sha256:
        partial.unlink()
        arrived, reported = digest[:12], artifact.sha256[:12]
        raise HostUnreachable(
            f"artifact {artifact.name} arrived with the digest {arrived}, "
            f"but the agent reported {reported}"
        )
    partial.replace(target)
