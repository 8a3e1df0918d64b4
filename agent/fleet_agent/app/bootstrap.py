"""Builds the parts of an agent from its configuration."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined] # not in the stubs

from fleet_agent.app.admission import Admission
from fleet_agent.app.config import AgentConfig, split_address
from fleet_agent.app.service import AgentService
from fleet_agent.core.allocation import GpuPool
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.engines.simulated.simulated_engine import simulator_is_installed
from fleet_agent.host.gpus import RecordedGpus
from fleet_agent.host.host_state import HostState
from fleet_agent.host.nvml import NvmlGpus
from fleet_agent.host.sysfs import host_name
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialTools
from fleet_agent.storage.journal import Journal
from fleet_agent.trials.agent import Agent, Pools
from fleet_agent.trials.trial_metrics import AgentMetrics
from fleet_protos.v1 import agent_pb2, agent_pb2_grpc
from fleet_transport.certificate import Certificate
from fleet_transport.request_limits import GRPC_MAX_BYTES, RequestLimit
from fleet_transport.sockets import bind_server, listen_address
from fleet_transport.tls_gateway import TlsGateway
from fleet_transport.tls_identity import Role

_MAX_REQUEST_BYTES = 2 << 20  # the largest request is a trial
_OPTIONS = [
    ("grpc.max_concurrent_streams", 512),
    ("grpc.max_receive_message_length", GRPC_MAX_BYTES),
    # a controller pings every 5 s
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
]


@dataclass(frozen=True, slots=True)
class AgentParts:
    """Holds all parts of an agent that has not been started yet."""

    agent: Agent
    server: aio.Server
    journal: Journal
    address: str
    host: str
    gateway: TlsGateway | None = None  # in front of the server on a network; run its serve() too


async def build_agent(
    config: AgentConfig, recorded_gpus: Path | None = None, memory_back_s: float = 30.0
) -> AgentParts:
    """Build all parts of an agent. `memory_back_s` is how long to wait for free GPU memory.

    Raises ConfigError if the configuration is invalid. Raises Conflict if another process uses the
    state folder or the address.
    """
    state = (config.state or Path()).absolute()
    await asyncio.to_thread(state.mkdir, parents=True, exist_ok=True, mode=0o700)
    host = config.host or host_name()
    journal = Journal.open(state / "journal")
    host_state = HostState(
        RecordedGpus(recorded_gpus) if recorded_gpus else NvmlGpus(), state, memory_back_s
    )
    gpus = config.gpus if config.gpus is not None else await host_state.gpu_count()
    simulated_gpus = (config.simulated_gpus or 0) if simulator_is_installed() else 0
    tools = TrialTools(Supervisor(), LoadProcess(), Ports(), ENGINES, host_state, config.kept_bytes)
    pools = Pools(GpuPool(tuple(range(gpus))), GpuPool(tuple(range(simulated_gpus))))
    agent = Agent(state, journal, tools, pools, AgentMetrics(host, split_address(config.metrics)))
    admission = Admission.from_config(host, config, state)
    about = agent_pb2.DescribeResponse(
        host=host,
        gpus=gpus,
        simulated_gpus=simulated_gpus,
        labels=config.labels,
        fingerprint=await host_state.fingerprint(),
        load_only=config.policy.load_only,
        strict=not config.policy.is_open,
        allowed_pythons=admission.policy.python,
        allowed_images=admission.policy.images,
        server_python=config.server.python,
        server_image=config.server.image,
    )
    server = aio.server(options=_OPTIONS, interceptors=[RequestLimit(_MAX_REQUEST_BYTES)])
    agent_pb2_grpc.add_AgentServiceServicer_to_server(
        AgentService(agent, journal, about, admission), server
    )
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    inner = listen_address(state, "agent")
    if config.tls is None or not config.listen or config.listen.startswith("unix:"):
        return AgentParts(agent, server, journal, bind_server(server, config.listen or inner), host)

    def on_certificate_change(certificate: Certificate) -> None:
        about.certificate_expires_unix_s = certificate.not_after_unix_s

    gateway = TlsGateway(
        config.listen,
        bind_server(server, inner),
        config.tls,
        frozenset({Role.CONTROLLER}),
        on_certificate_change,
    )
    return AgentParts(agent, server, journal, gateway.address, host, gateway)
