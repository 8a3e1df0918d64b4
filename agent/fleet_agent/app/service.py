"""Answers the gRPC calls to an agent: turns requests into calls on `Agent`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from google.protobuf import json_format
from grpc import aio

from fleet_agent.app.admission import Admission
from fleet_agent.core.admission.spec_validation import LARGEST_SPEC_BYTES, find_value_faults
from fleet_agent.load.cluster.membership import ClusterSecrets, Membership
from fleet_agent.server.host_check import inspect_host
from fleet_agent.storage import trial_artifacts
from fleet_agent.storage.journal import Journal, JournalFailed
from fleet_agent.trials.agent import Agent
from fleet_protos import __version__
from fleet_protos.codec import from_proto, to_proto
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import ConfigError, Conflict, FleetError
from fleet_protos.grpc_errors import status_code
from fleet_protos.protocol_version import PROTOCOL
from fleet_protos.trial_types import TrialSpec
from fleet_protos.v1 import agent_pb2, agent_pb2_grpc, trial_pb2

_CHUNK_BYTES = 256 << 10
_MAX_REASON_BYTES = 2000
_CHECK_SENDER = "check which client sent this message"
Context = aio.ServicerContext[Any, Any]


async def _refuse(context: Context, error: FleetError) -> NoReturn:
    text = f"{error.message} — {error.hint}" if error.hint else error.message
    # the text travels in the trailer, which is limited to 8 KiB
    short = text.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
    # A journal that cannot be written now (a full disk) is a state of the host, not a bug.
    kind = Conflict if isinstance(error, JournalFailed) else type(error)
    await context.abort(status_code(kind), short)


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """Answers the RPCs of one agent. StartTrial and CancelTrial only give an order and return at
    once. WatchEvents reports what happens to the trial afterwards.
    """

    def __init__(
        self,
        agent: Agent,
        journal: Journal,
        description: agent_pb2.DescribeResponse,
        admission: Admission,
    ) -> None:
        self._agent = agent
        self._journal = journal
        self._description = description
        self._admission = admission

    async def Describe(
        self, request: agent_pb2.DescribeRequest, context: Context
    ) -> agent_pb2.DescribeResponse:
        """Return the agent's identity, version and host, its active trials and its free disk."""
        answer = agent_pb2.DescribeResponse()
        answer.CopyFrom(self._description)
        answer.agent_id = self._journal.agent_id
        answer.last_sequence = self._journal.last_sequence
        answer.active_trials.extend(self._agent.active)
        answer.version = __version__
        answer.pid = os.getpid()
        answer.protocol = PROTOCOL
        answer.now_unix_ns = time.time_ns()
        answer.disk_free_bytes = self._agent.free_bytes
        answer.takes_no_trials = self._agent.takes_no_trials
        answer.kept_attempts.extend(self._agent.unreleased_attempts)
        return answer

    async def StartTrial(
        self, request: agent_pb2.StartTrialRequest, context: Context
    ) -> agent_pb2.StartTrialResponse:
        """Start a trial. A repeated call with the same trial id and attempt changes nothing."""
        try:
            await self._agent.accept_epoch(_read_epoch(request))
            spec = _read_trial_spec(request)
            if not self._agent.knows(spec.trial_id, spec.attempt):
                spec = await asyncio.to_thread(self._admission.admit, spec)
            return agent_pb2.StartTrialResponse(known=self._agent.start(spec))
        except FleetError as error:
            await _refuse(context, error)

    async def CancelTrial(
        self, request: agent_pb2.CancelTrialRequest, context: Context
    ) -> agent_pb2.CancelTrialResponse:
        """Cancel a trial. Does nothing if the trial is over."""
        try:
            await self._agent.accept_epoch(_read_epoch(request))
        except FleetError as error:
            await _refuse(context, error)
        active = self._agent.cancel(request.trial_id, request.attempt, request.reason)
        return agent_pb2.CancelTrialResponse(active=active)

    async def WatchEvents(
        self, request: agent_pb2.WatchEventsRequest, context: Context
    ) -> AsyncIterator[agent_pb2.WatchEventsResponse]:
        """Stream the events after the requested sequence number until the caller cancels."""
        await self._refuse_other_agent(request.agent_id, context)
        try:
            epoch = _read_epoch(request)
            await self._agent.accept_epoch(epoch)
            async for event in self._agent.events(request.after_sequence, epoch):
                yield agent_pb2.WatchEventsResponse(event=to_proto(event, trial_pb2.Event()))
        except FleetError as error:
            await _refuse(context, error)

    async def AckEvents(
        self, request: agent_pb2.AckEventsRequest, context: Context
    ) -> agent_pb2.AckEventsResponse:
        """Record up to which sequence number the controller has stored all events."""
        await self._refuse_other_agent(request.agent_id, context)
        try:
            await self._agent.accept_epoch(_read_epoch(request))
            await self._agent.acknowledge(request.up_to_sequence)
        except FleetError as error:
            await _refuse(context, error)
        return agent_pb2.AckEventsResponse()

    async def _refuse_other_agent(self, agent_id: str, context: Context) -> None:
        """Abort a call that names another agent id: the sequence numbers in it belong to another
        journal.
        """
        if agent_id and agent_id != self._journal.agent_id:
            message = (
                f"this is agent {self._journal.agent_id}, not {agent_id}: "
                "its journal was re-created"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)

    async def ReleaseAttempt(
        self, request: agent_pb2.ReleaseAttemptRequest, context: Context
    ) -> agent_pb2.ReleaseAttemptResponse:
        """Allow the agent to delete the files of an attempt."""
        try:
            await self._agent.accept_epoch(_read_epoch(request))
        except FleetError as error:
            await _refuse(context, error)
        self._agent.release(request.trial_id, request.attempt)
        return agent_pb2.ReleaseAttemptResponse()

    async def FetchArtifact(
        self, request: agent_pb2.FetchArtifactRequest, context: Context
    ) -> AsyncIterator[agent_pb2.FetchArtifactResponse]:
        """Stream an artifact from byte `offset` on, in chunks that each carry a SHA-256 digest."""
        try:
            path = trial_artifacts.resolve_artifact(self._agent.artifact_root, request.name)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{error.message} — {error.hint}")
        offset = request.offset
        while data := await asyncio.to_thread(_read_chunk, path, offset):
            yield agent_pb2.FetchArtifactResponse(
                offset=offset, data=data, sha256=hashlib.sha256(data).hexdigest()
            )
            offset += len(data)

    async def CheckHost(
        self, request: agent_pb2.CheckHostRequest, context: Context
    ) -> agent_pb2.CheckHostResponse:
        """Return findings about what would prevent trials on this host now."""
        found = await inspect_host(
            self._agent.host, self._agent.activity, self._admission.policy, self._admission.defaults
        )
        findings = [agent_pb2.HostFinding(**finding.to_json()) for finding in found]
        return agent_pb2.CheckHostResponse(findings=findings)

    async def JoinLoad(
        self, request: agent_pb2.JoinLoadRequest, context: Context
    ) -> agent_pb2.JoinLoadResponse:
        """Join the load cluster of an attempt. A repeated call for the same attempt changes
        nothing.
        """
        try:
            await self._agent.accept_epoch(_read_epoch(request))
            known, lead_address = await self._agent.load_parts.join(*_read_load_part(request))
            return agent_pb2.JoinLoadResponse(known=known, lead_address=lead_address)
        except FleetError as error:
            await _refuse(context, error)

    async def LeaveLoad(
        self, request: agent_pb2.LeaveLoadRequest, context: Context
    ) -> agent_pb2.LeaveLoadResponse:
        """Leave the load cluster of an attempt. Does nothing if this host has not joined it."""
        try:
            await self._agent.accept_epoch(_read_epoch(request))
            return agent_pb2.LeaveLoadResponse(
                joined=await self._agent.load_parts.leave(request.trial_id, request.attempt)
            )
        except FleetError as error:
            await _refuse(context, error)


def _read_epoch(request: Any) -> ControllerEpoch:
    """Return the controller epoch that a request carries in `lease`. Return an empty epoch if the
    request has no `lease`. Raises ConfigError if the epoch is invalid.
    """
    epoch = from_proto(ControllerEpoch, request.lease)
    _require_valid(epoch)
    return epoch


def _require_valid(value: Any) -> None:
    if found := find_value_faults(value):
        raise ConfigError(f"invalid message: {'; '.join(found)}", _CHECK_SENDER)


def _read_load_part(request: agent_pb2.JoinLoadRequest) -> tuple[Membership, ClusterSecrets]:
    """Return the membership of this host in a load cluster, and the secrets of the cluster. Raises
    ConfigError if a value is invalid.
    """
    part = Membership(
        trial_id=request.trial_id,
        attempt=request.attempt,
        host=request.host,
        address=request.address,
        lead_address=request.lead_address,
        cores=request.cores,
        hold_limit_s=request.hold_limit_s,
    )
    _require_valid(part)
    try:
        texts = [
            pem.decode("ascii") for pem in (request.authority, request.certificate, request.key)
        ]
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the certificates for the load cluster of trial {request.trial_id} are not PEM text",
            _CHECK_SENDER,
        ) from error
    return part, ClusterSecrets(request.token, *texts)


def _read_trial_spec(request: agent_pb2.StartTrialRequest) -> TrialSpec:
    """Return the trial that a request contains. Raises ConfigError if the request is too large or
    cannot be read.
    """
    if (size := request.ByteSize()) > LARGEST_SPEC_BYTES:
        raise ConfigError(
            f"the trial has {size} bytes, more than the limit of {LARGEST_SPEC_BYTES} bytes",
            _CHECK_SENDER,
        )
    try:
        return from_proto(TrialSpec, request.spec)
    except (ValueError, json_format.Error) as error:
        # a number that JSON cannot hold, an invalid enum
        raise ConfigError(
            f"cannot read a trial from the request: {error}", _CHECK_SENDER
        ) from error


def _read_chunk(path: os.PathLike[str], offset: int) -> bytes:
    with open(path, "rb") as file:
        if offset >= os.fstat(file.fileno()).st_size:  # seek() rejects an offset above 2**63
            return b""
        file.seek(offset)
        return file.read(_CHUNK_BYTES)
