"""Jobs that wait behind others, are held, or are interrupted: what starts, and what is said."""

from __future__ import annotations

from pathlib import Path

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.hosts.host_health import HELD
from tests.fakes.agent import FakeAgent
from tests.integration.test_hosts import agents, controller, done, job, started, until

__all__ = ["agents"]


async def test_a_queued_job_says_behind_what_it_waits_and_its_place(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        first = await fleet.submit(job("first"), "job.yaml")
        (running,) = await started(fleet, first, agents[0], 1)
        ids = [await fleet.submit(job(f"job{n}"), "job.yaml") for n in (1, 2)]
        for place, job_id in enumerate(ids, start=1):
            detail = await until(fleet, job_id, lambda found: bool(found.job.trouble))
            assert (
                detail.job.trouble == f"waits behind job {first}, place {place} of 2 in the queue"
            )
        agents[0].by_itself = True
        agents[0].end(running)
        for job_id in (first, *ids):
            detail = await done(fleet, job_id)
            assert (detail.job.state, detail.job.trouble) == ("done", "")


async def test_a_controller_for_one_job_begins_no_trial_of_the_others(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    async with controller(tmp_path, agents[:1]) as fleet:
        await done(fleet, await fleet.submit(job("first"), "job.yaml"))
        await fleet.drain("a", "")
        held, wanted = [await fleet.submit(job(name), "job.yaml") for name in ("held", "wanted")]
    agents[0].started.clear()
    address = agents[0].address
    async with start_controller(tmp_path / "controller", [address], only_job=wanted) as here:
        await until(here.fleet, held, lambda found: "drained" in found.job.trouble)
        await here.fleet.undrain("a")
        assert (await done(here.fleet, wanted)).job.state == "done"
        detail = await until(here.fleet, held, lambda found: bool(found.job.trouble))
        assert detail.job.trouble == f"waits {HELD}"
        assert {spec.job_name for spec in agents[0].started} == {"wanted"}
    async with controller(tmp_path, agents[:1]) as fleet:  # as `up` does: it serves all jobs
        assert (await done(fleet, held)).job.state == "done"


async def test_an_interrupted_job_is_repeated_by_the_next_controller_without_a_failure(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    job_id = ""
    for attempt in range(1, 6):  # more often than any failure may be repeated
        async with controller(tmp_path, agents[:1]) as fleet:
            job_id = job_id or await fleet.submit(job(), "job.yaml")
            await until(fleet, job_id, lambda found, n=attempt: found.trials[0].attempt == n)
            await started(fleet, job_id, agents[0], attempt)
            await fleet.interrupt()
            detail = await fleet.job(job_id)
            assert (detail.trials[0].outcome.name, detail.job.state) == ("CANCELLED", "running")
    agents[0].by_itself = True
    async with controller(tmp_path, agents[:1]) as fleet:
        ended = await done(fleet, job_id)
        assert ended.job.state == "done"
        assert await fleet.hosts() != ()
        assert (await fleet.hosts())[0].aside == ""  # interrupting is not the host's fault
