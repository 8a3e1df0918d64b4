"""Promises about a host's part in the load of others, by real processes: taken once, fenced by
attempt, and nothing stays behind.

No Ray starts here: a part waits for its lead first, and no lead is there. Whole clusters are tested
on lab hosts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from fleet_agent.load.cluster.membership import ClusterSecrets, Membership, MembershipFiles
from fleet_agent.load.cluster_roles import ClusterRoles
from fleet_controller.hosts.agent_client import AgentClient, LoadPart
from fleet_controller.pki.load_cluster_ca import LoadClusterAuthority
from fleet_protos.errors import ConfigError, Conflict, Superseded
from fleet_protos.trial_types import LoadPlan, TrialSpec
from tests.fakes.two_hosts import agent

LEAD = "127.0.0.1:9"  # nothing listens there
TRUST = LoadClusterAuthority(datetime.now(UTC))
ISSUED = TRUST.issue("load1", "127.0.0.1")
SECRETS = ClusterSecrets(
    TRUST.token,
    TRUST.authority_pem.decode(),
    ISSUED.certificate_pem.decode(),
    ISSUED.key_pem.decode(),
)
PART = Membership("trial", 2, "load1", "127.0.0.1", LEAD, cores=1, hold_limit_s=600)
PARENT = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_load_parts import PART, SECRETS
from fleet_agent.load.cluster_roles import ClusterRoles
async def main():
    parts = ClusterRoles(Path(sys.argv[1]))
    await parts.join(PART, SECRETS)
    print("joined", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[ClusterRoles]:
    made = ClusterRoles(tmp_path)
    await made.end_leftovers()
    yield made
    await made.stop()


def nodes(folder: Path) -> list[psutil.Process]:
    """Processes of parts below this folder that live."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if (
                "fleet_agent.load.cluster.load_host_process" in words
                and any(str(folder) in word for word in words)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


async def gone(folder: Path) -> None:
    """Returns when no part is left there."""
    async with asyncio.timeout(20):
        while nodes(folder):  # noqa: ASYNC110 - other processes' ends
            await asyncio.sleep(0.05)


async def test_a_part_is_taken_once_however_often_it_is_told(
    parts: ClusterRoles, tmp_path: Path
) -> None:
    assert await parts.join(PART, SECRETS) == (False, LEAD)
    [first] = nodes(tmp_path)
    assert await parts.join(PART, SECRETS) == (True, LEAD)
    assert nodes(tmp_path) == [first]


async def test_a_newer_attempt_takes_the_place_of_an_older_one_which_is_refused_from_then_on(
    parts: ClusterRoles, tmp_path: Path
) -> None:
    await parts.join(PART, SECRETS)
    [older] = nodes(tmp_path)
    await parts.join(replace(PART, attempt=3), SECRETS)
    [newer] = nodes(tmp_path)
    assert newer != older
    with pytest.raises(Superseded, match="attempt 3"):
        await parts.join(PART, SECRETS)
    assert MembershipFiles(tmp_path / "load-host" / "cluster").read().attempt == 3


async def test_leaving_ends_the_process_and_forgets_the_secrets(
    parts: ClusterRoles, tmp_path: Path
) -> None:
    await parts.join(PART, SECRETS)
    assert not await parts.leave("trial", 1)
    assert await parts.leave("trial", 2)
    assert not await parts.leave("trial", 2)
    assert nodes(tmp_path) == []
    assert not (tmp_path / "load-host" / "cluster").exists()


async def test_a_killed_part_is_cleared_away_and_may_be_taken_again(
    parts: ClusterRoles, tmp_path: Path
) -> None:
    await parts.join(PART, SECRETS)
    nodes(tmp_path)[0].kill()
    async with asyncio.timeout(10):
        while (tmp_path / "load-host" / "cluster").exists():  # noqa: ASYNC110 - its folder tells nobody that it has gone
            await asyncio.sleep(0.02)
    assert await parts.join(PART, SECRETS) == (False, LEAD)
    assert len(nodes(tmp_path)) == 1


async def test_a_part_ends_at_its_limit_whatever_became_of_lead_and_controller(
    parts: ClusterRoles, tmp_path: Path
) -> None:
    await parts.join(replace(PART, hold_limit_s=0.5), SECRETS)
    await gone(tmp_path)


async def test_a_part_ends_with_its_agent_killed_by_sigkill_and_the_next_agent_forgets_its_secrets(
    tmp_path: Path,
) -> None:
    words = (sys.executable, "-c", PARENT, str(tmp_path))
    parent = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None and await parent.stdout.readline() == b"joined\n"
    parent.kill()
    await parent.wait()
    await gone(tmp_path)
    assert (tmp_path / "load-host" / "cluster").exists()
    await ClusterRoles(tmp_path).end_leftovers()
    assert not (tmp_path / "load-host" / "cluster").exists()


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (replace(PART, address="192.0.2.1"), "host load1 does not own address 192.0.2.1"),
        (replace(PART, address="load1.example"), "not an IP address"),
        (replace(PART, cores=4096), "4096 shards"),
    ],
)
async def test_a_part_that_this_host_cannot_take_is_refused(
    parts: ClusterRoles, tmp_path: Path, part: Membership, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        await parts.join(part, SECRETS)
    assert nodes(tmp_path) == []


async def test_a_host_leads_what_it_was_told_to_lead_and_one_at_a_time(
    parts: ClusterRoles, tmp_path: Path
) -> None:
    spec = TrialSpec(trial_id="trial", attempt=2, load=LoadPlan(("load1", "load2"), 4))
    with pytest.raises(Conflict, match="has no order to lead"):
        parts.start_lead(spec)
    known, address = await parts.join(replace(PART, lead_address="", cores=0), SECRETS)
    assert not known and address.startswith("127.0.0.1:")
    assert await parts.join(replace(PART, lead_address="", cores=0), SECRETS) == (True, address)
    parts.start_lead(spec)
    written = MembershipFiles(tmp_path / "load-lead" / "cluster").read()
    assert (written.hosts, written.shards, written.lead_address) == (("load1", "load2"), 4, address)
    await parts.join(replace(PART, trial_id="other", lead_address=""), SECRETS)
    with pytest.raises(Conflict, match="is already leading the load of trial trial"):
        parts.start_lead(replace(spec, trial_id="other"))
    parts.release_lead(("trial", 2))
    assert not (tmp_path / "load-lead" / "cluster").exists()
    parts.start_lead(replace(spec, trial_id="other"))


async def test_an_agent_takes_and_leaves_a_part_over_its_socket(tmp_path: Path) -> None:
    part = LoadPart(
        trial_id="trial", attempt=2, host="load1", address="127.0.0.1", lead_address=LEAD, cores=1, hold_limit_s=600, token=TRUST.token,
        authority=TRUST.authority_pem, certificate=ISSUED.certificate_pem, key=ISSUED.key_pem,
    )  # fmt: skip
    with agent(tmp_path / "a", "load1") as address:
        client = AgentClient(address)
        assert await client.join_load(part) == LEAD
        assert await client.join_load(part) == LEAD
        with pytest.raises(Superseded):
            await client.join_load(replace(part, attempt=1))
        with pytest.raises(ConfigError, match="are not PEM text"):
            await client.join_load(replace(part, attempt=3, key=b"\xff"))
        assert await client.leave_load("trial", 2)
        assert not await client.leave_load("trial", 2)
        assert await client.join_load(part) == LEAD
        await client.close()
    await gone(tmp_path)  # the agent was ended
    assert (tmp_path / "a" / "log").read_text().count("joins the load of trial trial") == 2
