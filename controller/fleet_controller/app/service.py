"""The controller's gRPC service. It turns gRPC requests into calls of a `Controller`, and errors
into status codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined] # the stubs lack it

from fleet_controller.core.controller_api import Controller
from fleet_protos.codec import to_proto
from fleet_protos.errors import FleetError
from fleet_protos.grpc_errors import ANSWER_KEY, status_code
from fleet_protos.v1 import controller_pb2 as pb
from fleet_protos.v1 import controller_pb2_grpc
from fleet_transport.request_limits import GRPC_MAX_BYTES, RequestLimit
from fleet_transport.sockets import bind_server
from fleet_transport.tls_gateway import TlsGateway
from fleet_transport.tls_identity import Role, TlsFiles

_LARGEST_MESSAGE_BYTES = 4 << 20  # more than any job file
# The text is sent in the trailer, which takes 8 KiB and may need three bytes for one.
_LONGEST_REASON_BYTES = 2400
_OPTIONS = [
    ("grpc.max_receive_message_length", GRPC_MAX_BYTES),
    ("grpc.max_send_message_length", 256 << 20),
]
Context = aio.ServicerContext[Any, Any]


async def _abort_with(context: Context, error: FleetError) -> NoReturn:
    """Abort the call with the status code that belongs to the error. The status text holds message
    and hint, which `fleetctl` shows unchanged.
    """
    text = f"{error.message}\n{error.hint}" if error.hint else error.message
    await context.abort(
        status_code(type(error)),
        text.encode()[:_LONGEST_REASON_BYTES].decode(errors="ignore"),
        ((ANSWER_KEY, "1"),),
    )


class ControllerService(controller_pb2_grpc.ControllerServiceServicer):
    """The gRPC service that `fleetctl` calls. It passes each call on to a `Controller`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def SubmitJob(
        self, request: pb.SubmitJobRequest, context: Context
    ) -> pb.SubmitJobResponse:
        """Submit the text of a job file. Return the id of the job and its number of trials."""
        try:
            job_id = await self._controller.submit(
                request.yaml, request.file_name, request.only_connected, request.request_key
            )
            job = await self._controller.job(job_id)
        except FleetError as error:
            await _abort_with(context, error)
        return pb.SubmitJobResponse(job_id=job_id, trials=job.job.trials)

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Return a job with its trials."""
        try:
            return to_proto(await self._controller.job(request.job_id), pb.GetJobResponse())
        except FleetError as error:
            await _abort_with(context, error)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """Return all jobs, the newest first."""
        try:
            jobs = await self._controller.jobs()
        except FleetError as error:
            await _abort_with(context, error)
        return pb.ListJobsResponse(jobs=[to_proto(job, pb.JobSummary()) for job in jobs])

    async def WatchJob(
        self, request: pb.WatchJobRequest, context: Context
    ) -> AsyncIterator[pb.WatchJobResponse]:
        """Stream the changes of a job until it is over."""
        try:
            async for change in self._controller.watch(request.job_id):
                yield to_proto(change, pb.WatchJobResponse())
        except FleetError as error:
            await _abort_with(context, error)

    async def CancelJob(
        self, request: pb.CancelJobRequest, context: Context
    ) -> pb.CancelJobResponse:
        """Cancel a job."""
        try:
            return pb.CancelJobResponse(
                trials_cancelled=await self._controller.cancel(request.job_id)
            )
        except FleetError as error:
            await _abort_with(context, error)

    async def ListHosts(
        self, request: pb.ListHostsRequest, context: Context
    ) -> pb.ListHostsResponse:
        """Return all hosts, connected or not."""
        try:
            hosts = await self._controller.hosts()
        except FleetError as error:
            await _abort_with(context, error)
        return pb.ListHostsResponse(hosts=[to_proto(host, pb.HostStatus()) for host in hosts])

    async def GetResults(
        self, request: pb.GetResultsRequest, context: Context
    ) -> AsyncIterator[pb.GetResultsResponse]:
        """Stream the stored runs of a job. The work ends when the caller is gone."""
        try:
            async for part in self._controller.result_parts(request.job_id):
                # in a thread, because 5,000 runs take a large part of a second
                yield await asyncio.to_thread(to_proto, part, pb.GetResultsResponse())
        except FleetError as error:
            await _abort_with(context, error)

    async def GetTrial(self, request: pb.GetTrialRequest, context: Context) -> pb.GetTrialResponse:
        """Return one attempt of a trial with its events."""
        try:
            trial = await self._controller.trial(
                request.trial_id, request.attempt, request.with_log
            )
        except FleetError as error:
            await _abort_with(context, error)
        return to_proto(trial, pb.GetTrialResponse())

    async def DrainHost(
        self, request: pb.DrainHostRequest, context: Context
    ) -> pb.DrainHostResponse:
        """Start no new trials on a host."""
        try:
            await self._controller.drain(request.host, request.reason)
        except FleetError as error:
            await _abort_with(context, error)
        return pb.DrainHostResponse()

    async def UndrainHost(
        self, request: pb.UndrainHostRequest, context: Context
    ) -> pb.UndrainHostResponse:
        """Allow trials on a host again."""
        try:
            await self._controller.undrain(request.host)
        except FleetError as error:
            await _abort_with(context, error)
        return pb.UndrainHostResponse()

    async def CheckHosts(
        self, request: pb.CheckHostsRequest, context: Context
    ) -> AsyncIterator[pb.CheckHostsResponse]:
        """Check hosts and stream each result when it is ready."""
        try:
            async for check in self._controller.check_hosts(tuple(request.hosts)):
                yield to_proto(check, pb.CheckHostsResponse())
        except FleetError as error:
            await _abort_with(context, error)


@asynccontextmanager
async def serve_controller(
    controller: Controller, address: str, tls_address: str = "", tls: TlsFiles | None = None
) -> AsyncIterator[str]:
    """Serve the controller at `address` in the with block, with gRPC's standard health service. If
    `tls` is given, a TLS gateway at `tls_address` leads to it too.

    Yields the address for clients with its real port. This is the address of the gateway if there
    is one. Raises ConfigError, Conflict.
    """
    server = aio.server(options=_OPTIONS, interceptors=[RequestLimit(_LARGEST_MESSAGE_BYTES)])
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(
        ControllerService(controller), server
    )
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    async with AsyncExitStack() as stack:
        bound = bind_server(server, address)
        if tls is not None:
            bound = await stack.enter_async_context(
                TlsGateway(
                    tls_address, bound, tls, frozenset({Role.USER, Role.CONTROLLER})
                ).serving()
            )
        await server.start()
        stack.push_async_callback(server.stop, grace=1.0)
        yield bound
