"""A comparison names the variables that servers got from their hosts."""

from __future__ import annotations

from pathlib import Path

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.cli.host_variable_notes import host_variable_differences, host_variables
from fleet_controller.cli.job_comparison import VerdictOptions, compare_job
from fleet_controller.job_file.job_loader import load_job
from tests.fakes.agent import FakeAgent
from tests.integration.test_hosts import agents, done, job

__all__ = ["agents"]


async def test_compare_names_variables_of_hosts_and_those_that_one_job_lacks(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].server_env = {"NCCL_PROTO": "Simple", "NCCL_SOCKET_IFNAME": "eth0"}
    addresses = [agent.address for agent in agents]
    async with start_controller(tmp_path / "controller", addresses) as here:
        first = await here.fleet.submit(job("first"), "job.yaml")
        await done(here.fleet, first)
        compared = await compare_job(here.fleet, first, VerdictOptions())
        assert "NCCL_SOCKET_IFNAME=eth0 came from host a" in compared.notes
        assert "NCCL_PROTO=Simple came from host a, for nccl=default" in compared.notes
        before = await host_variables(
            here.fleet, await here.fleet.job(first), load_job(job("first"), "job.yaml").job
        )
        assert host_variable_differences(before, {}) == (
            "only in the first job, NCCL_PROTO=Simple came from host a, for nccl=default",
            "only in the first job, NCCL_SOCKET_IFNAME=eth0 came from host a",
        )
