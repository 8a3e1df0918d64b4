"""Owns an agent with nothing in it but health and Describe: a real process that `fleetctl`'s agent
keeper can start, lose and end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from fleet_protos.v1 import agent_pb2, agent_pb2_grpc


class _Agent(agent_pb2_grpc.AgentServiceServicer):
    async def Describe(
        self, request: agent_pb2.DescribeRequest, context: object
    ) -> agent_pb2.DescribeResponse:
        return agent_pb2.DescribeResponse(host="bare", pid=os.getpid())


async def _serve(options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, (lambda: None) if options.deaf else ended.set
    )
    server, health = aio.server(), health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(_Agent(), server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(options.listen)
    await server.start()
    await ended.wait()
    await server.stop(0)


def main() -> int:
    """Serve until SIGTERM; --broken ends at once with a message, --deaf ignores SIGTERM."""
    parse = argparse.ArgumentParser()
    for option in ("--state", "--listen", "--host-name", "--linger"):
        parse.add_argument(option)
    parse.add_argument("--broken", action="store_true")
    parse.add_argument("--deaf", action="store_true")
    options = parse.parse_args()
    if options.broken:
        sys.stderr.write("no GPU driver here\n")
        return 3
    asyncio.run(_serve(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
