"""Calls a controller over gRPC and turns status codes into our errors."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar, cast

import grpc
from grpc import aio

from fleet_controller.core.controller_api import (
    HostCheck,
    HostStatus,
    JobChange,
    JobDetail,
    JobResults,
    JobSummary,
    TrialDetail,
    is_job_over,
    join_results,
)
from fleet_protos.codec import from_proto
from fleet_protos.errors import FleetError, HostUnreachable
from fleet_protos.grpc_errors import ANSWER_KEY, error_class
from fleet_protos.v1 import controller_pb2 as pb
from fleet_protos.v1 import controller_pb2_grpc
from fleet_transport.tls_client import ReloadingChannel
from fleet_transport.tls_identity import CONTROLLER_NAME, TlsFiles

_ANSWER_LIMIT_S = 30.0  # for a whole answer, or for the next part of a long one
_SUBMIT_RETRY_PAUSES_S = (0.3, 1.0)
_CHECK_TIMEOUT_S = 300.0  # for many hosts, each of which has a limit of its own
_LARGEST_MESSAGE_BYTES = 256 << 20
T = TypeVar("T")


class ControllerLost(HostUnreachable):
    """The controller did not answer, or the connection to it broke. The next call connects again.

    A HostUnreachable that is not one of these is the answer of a controller, about its hosts.
    """


class ControllerClient:
    """Implements `Controller` with calls to a controller at a gRPC address. It is an async context
    manager.

    A network address needs `tls`. Raises ConfigError, which names the file, for TLS files that
    cannot be used.
    """

    def __init__(
        self, address: str, tls: TlsFiles | None = None, limit_s: float = _ANSWER_LIMIT_S
    ) -> None:
        self._address = address
        self._limit_s = limit_s
        self._channel = ReloadingChannel(
            address,
            tls,
            CONTROLLER_NAME,
            [("grpc.max_receive_message_length", _LARGEST_MESSAGE_BYTES)],
        )
        self._stub: controller_pb2_grpc.ControllerServiceAsyncStub = (
            controller_pb2_grpc.ControllerServiceStub(self._channel.channel())
        )

    async def __aenter__(self) -> ControllerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = ""
    ) -> str:
        """Submit a job and return its id, as `Controller.submit` describes.

        If the connection breaks before the response, the call is repeated with the same request
        key, so that no second job is created.
        """
        key = request_key or uuid.uuid4().hex
        request = pb.SubmitJobRequest(
            yaml=yaml, file_name=file_name, only_connected=only_connected, request_key=key
        )
        for pause_s in _SUBMIT_RETRY_PAUSES_S:
            try:
                return (await self._call(self._stub.SubmitJob, request)).job_id
            except ControllerLost:
                await asyncio.sleep(pause_s)
        return (await self._call(self._stub.SubmitJob, request)).job_id

    async def jobs(self) -> tuple[JobSummary, ...]:
        """List all jobs, newest first."""
        response = await self._call(self._stub.ListJobs, pb.ListJobsRequest())
        return tuple(from_proto(JobSummary, job) for job in response.jobs)

    async def job(self, job_id: str) -> JobDetail:
        """Fetch a job with its trials."""
        return from_proto(
            JobDetail,
            await self._call(self._stub.GetJob, pb.GetJobRequest(job_id=job_id)),
        )

    async def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """Yield changes of a job until it is over. Raises ControllerLost if they end before."""
        last = JobChange()
        try:
            async for change in self._stub.WatchJob(pb.WatchJobRequest(job_id=job_id)):
                last = from_proto(JobChange, change)
                yield last
        except aio.AioRpcError as error:
            raise await self._translate_error(error) from error
        if not is_job_over(last.job):
            raise ControllerLost(f"the controller at {self._address} stopped answering")

    async def cancel(self, job_id: str) -> int:
        """Cancel a job and return how many trials this ended."""
        response = await self._call(self._stub.CancelJob, pb.CancelJobRequest(job_id=job_id))
        return response.trials_cancelled

    async def hosts(self) -> tuple[HostStatus, ...]:
        """List all hosts."""
        response = await self._call(self._stub.ListHosts, pb.ListHostsRequest())
        return tuple(from_proto(HostStatus, host) for host in response.hosts)

    async def drain(self, host: str, reason: str) -> None:
        """Start no new trials on a host."""
        await self._call(self._stub.DrainHost, pb.DrainHostRequest(host=host, reason=reason))

    async def undrain(self, host: str) -> None:
        """Start trials on a host again."""
        await self._call(self._stub.UndrainHost, pb.UndrainHostRequest(host=host))

    async def check_hosts(self, hosts: Sequence[str]) -> AsyncIterator[HostCheck]:
        """Check hosts and yield each result as it arrives."""
        try:
            async for check in self._stub.CheckHosts(
                pb.CheckHostsRequest(hosts=hosts), timeout=_CHECK_TIMEOUT_S
            ):
                yield from_proto(HostCheck, check)
        except aio.AioRpcError as error:
            raise await self._translate_error(error) from error

    async def results(self, job_id: str) -> JobResults:
        """Fetch all stored runs of a job."""
        return await join_results(self.result_parts(job_id))

    async def result_parts(self, job_id: str) -> AsyncIterator[JobResults]:
        """Yield the results of a job in parts, as they arrive."""
        call = self._stub.GetResults(pb.GetResultsRequest(job_id=job_id))
        try:
            while True:
                async with asyncio.timeout(self._limit_s):
                    message = await call.read()
                if not isinstance(message, pb.GetResultsResponse):
                    return
                yield from_proto(JobResults, message)
        except aio.AioRpcError as error:
            raise await self._translate_error(error) from error
        except TimeoutError as error:
            raise self._busy_error() from error
        finally:
            call.cancel()

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """Fetch one attempt of a trial."""
        request = pb.GetTrialRequest(trial_id=trial_id, attempt=attempt, with_log=with_log)
        return from_proto(TrialDetail, await self._call(self._stub.GetTrial, request))

    async def _call(self, method: Callable[..., Awaitable[T]], request: object) -> T:
        try:
            return await method(request, timeout=self._limit_s)
        except aio.AioRpcError as error:
            raise await self._translate_error(error) from error

    async def _translate_error(self, error: aio.AioRpcError) -> FleetError:
        kind = error_class(error.code())
        message, _, hint = (error.details() or error.code().name.lower()).partition("\n")
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._channel.is_connected:
            return self._busy_error()
        if kind is HostUnreachable and not _is_answer(error):
            reason = await self._channel.explain_failure() or message
            await self._channel.close()  # a new channel connects at once, without gRPC's pauses
            self._stub = controller_pb2_grpc.ControllerServiceStub(self._channel.channel())
            summary = f"the controller at {self._address} does not answer: {reason}"
            return ControllerLost(summary, _unreachable_hint(reason))
        return kind(message, hint)

    def _busy_error(self) -> ControllerLost:
        return ControllerLost(
            f"the controller at {self._address} is busy: it did not answer within "
            f"{self._limit_s:g} s, but it keeps the connection open",
            "try again later; its log shows what it does",
        )


def _is_answer(error: aio.AioRpcError) -> bool:
    """Return whether the controller itself sent the error; gRPC reports a broken connection with
    the same status. Controllers before ANSWER_KEY are recognised by their hint.
    """
    trailer = cast(Iterable[tuple[str, str]], error.trailing_metadata() or ())
    is_marked = any(key == ANSWER_KEY for key, _ in trailer)
    return is_marked or "\n" in (error.details() or "")


def _unreachable_hint(reason: str) -> str:
    if "certificate" in reason:
        return (
            "`fleetctl trust show` lists the certificates of this machine; `fleetctl trust issue"
            " NAME` on the controller's machine creates new ones"
        )
    return "check that `fleetctl up` is running there"
