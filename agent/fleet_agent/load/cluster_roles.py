"""Manages the clusters that this host belongs to: as a load host of another host's trial, or as the
lead of its own trials.

The controller decides which hosts join. A load host runs a process in a session of its own. This
process ends with the agent, with the lead, on an order of the controller, or at its hold limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from fleet_agent.host.processes import boot_id, read_stat
from fleet_agent.load.cluster.membership import ClusterSecrets, Membership, MembershipFiles
from fleet_agent.load.load_process import (
    LoadProcess,
    RecordedLoad,
    driver_env,
    end_earlier,
    end_leftover,
    log_tail,
    open_log,
    write_record,
)
from fleet_agent.load.workers.ray_temporary import temporary_folder
from fleet_protos.errors import ConfigError, Conflict, Superseded
from fleet_protos.trial_types import TrialSpec

log = logging.getLogger(__name__)

_MIN_CORES: Final = 2  # also assumed on a smaller host, since a local load uses two
_LEAVE_S: Final = 3.0  # for the process to end by itself; it kills Ray's processes anyway
AttemptKey = tuple[str, int]


@dataclass(slots=True)
class _JoinedCluster:
    """Holds a cluster that this host joined as a load host."""

    membership: Membership
    process: asyncio.subprocess.Process
    recorded: RecordedLoad
    watching: asyncio.Task[None] | None = None


class ClusterRoles:
    """Holds all memberships of this host. Use it on one event loop only.

    At any time, the host is a load host in at most one cluster and runs the load as lead in at most
    one.
    """

    def __init__(self, folder: Path) -> None:
        """Keep the secrets and logs of memberships below `folder`, which belongs to the agent."""
        self._as_host = folder / "load-host"
        self._as_lead = folder / "load-lead"
        self._joined: _JoinedCluster | None = None
        self._leads: dict[AttemptKey, tuple[Membership, ClusterSecrets]] = {}
        self._leading: AttemptKey | None = None
        self._lock = asyncio.Lock()

    async def end_leftovers(self) -> None:
        """End the processes that an earlier process of the agent left, and remove their secrets."""
        for folder in (self._as_host, self._as_lead):
            await end_earlier(folder)
            await asyncio.to_thread(_files(folder).remove)

    async def join(self, membership: Membership, secrets: ClusterSecrets) -> tuple[bool, str]:
        """Accept a membership. Return (whether it had been accepted before, address of the lead's
        Ray).

        Raises ConfigError if this host cannot have the membership. Raises Superseded if the host
        has a newer attempt of the trial. Raises Conflict if the process cannot be started.
        """
        _check_membership(membership)
        if not membership.lead_address:
            return self._lead(membership, secrets)
        async with self._lock:
            now = self._joined
            if (
                now is not None
                and now.membership.trial_id == membership.trial_id
                and now.membership.attempt > membership.attempt
            ):
                newer = now.membership.attempt
                raise Superseded(
                    f"attempt {membership.attempt} of trial {membership.trial_id} is over: "
                    f"this host already has attempt {newer} of the trial"
                )
            if (
                now is not None
                and now.membership.key == membership.key
                and now.process.returncode is None
            ):
                return True, membership.lead_address
            await self._leave()
            self._joined = await self._launch(membership, secrets)
        return False, membership.lead_address

    async def leave(self, trial_id: str, attempt: int) -> bool:
        """End the membership in the cluster of this attempt. Return False if this host has no such
        membership.
        """
        key = (trial_id, attempt)
        if key in self._leads and key != self._leading:
            del self._leads[key]
            return True
        async with self._lock:
            if self._joined is None or self._joined.membership.key != key:
                return False
            await self._leave()
        return True

    async def stop(self) -> None:
        """End the membership as a load host. The load processes of the lead end with
        their trials.
        """
        async with self._lock:
            await self._leave()

    def start_lead(self, spec: TrialSpec) -> LoadProcess:
        """Return the load process for a trial whose load comes from other hosts. Raises Conflict if
        this host cannot be its lead now.

        Call `release_lead` to end the membership.
        """
        key = (spec.trial_id, spec.attempt)
        if key not in self._leads:
            load_hosts = ", ".join(spec.load.hosts)
            message = (
                f"the load of trial {spec.trial_id} comes from {load_hosts}, "
                "but this host has no order to lead these hosts"
            )
            hint = "the controller will give the order and then try the trial again"
            raise Conflict(message, hint)
        if self._leading is not None:
            leading = self._leading[0]
            raise Conflict(
                f"this host is already leading the load of trial {leading}",
                "the controller will try the trial again",
            )
        membership, secrets = self._leads[key]
        try:
            _files(self._as_lead).write(
                replace(membership, hosts=spec.load.hosts, shards=spec.load.shards), secrets
            )
        except OSError as error:
            raise Conflict(
                f"cannot write the files of this host's membership in the load cluster: {error}",
                "free space in the agent's state folder",
            ) from error
        self._leading = key
        return LoadProcess(_files(self._as_lead).folder)

    @property
    def lead_folder(self) -> Path:
        """Return the folder in which the load process of a lead keeps its log."""
        return self._as_lead

    def release_lead(self, key: AttemptKey) -> None:
        """Forget the membership of a trial that is over. Its load process must have ended."""
        self._leads.pop(key, None)
        if self._leading == key:
            self._leading = None
            _files(self._as_lead).remove()

    def _lead(self, membership: Membership, secrets: ClusterSecrets) -> tuple[bool, str]:
        if membership.key in self._leads:
            return True, self._leads[membership.key][0].lead_address
        for key in [
            key for key in self._leads if key[0] == membership.trial_id and key != self._leading
        ]:
            if (newer := key[1]) > membership.attempt:
                raise Superseded(
                    f"attempt {membership.attempt} of trial {membership.trial_id} is over: "
                    f"this host already has attempt {newer} of the trial"
                )
            del self._leads[key]
        host = f"[{membership.address}]" if ":" in membership.address else membership.address
        placed = replace(membership, lead_address=f"{host}:{_free_port(membership.address)}")
        self._leads[membership.key] = (placed, secrets)
        return False, placed.lead_address

    async def _launch(self, membership: Membership, secrets: ClusterSecrets) -> _JoinedCluster:
        folder = self._as_host
        try:
            await asyncio.to_thread(_files(folder).write, membership, secrets)
            process, temporary = await _spawn(folder)
        except OSError as error:
            raise Conflict(
                f"this host cannot join the load of trial {membership.trial_id}: {error}"
            ) from error
        stat = read_stat(process.pid)
        recorded = RecordedLoad(process.pid, stat.start_ticks if stat else 0, temporary, boot_id())
        await asyncio.to_thread(write_record, folder, recorded)
        joined = _JoinedCluster(membership, process, recorded)
        joined.watching = asyncio.get_running_loop().create_task(self._watch_until_end(joined))
        log.info(
            "this host joins the load of trial %s, attempt %d, led at %s",
            membership.trial_id,
            membership.attempt,
            membership.lead_address,
        )
        return joined

    async def _watch_until_end(self, joined: _JoinedCluster) -> None:
        code = await joined.process.wait()
        await end_leftover(joined.recorded)
        await asyncio.to_thread(_files(self._as_host).remove)
        log_note = f": {log_tail(self._as_host / 'node.log')}" if code else ""
        log.info(
            "this host has left the load of trial %s, attempt %d: exit code %d%s",
            joined.membership.trial_id,
            joined.membership.attempt,
            code,
            log_note,
        )

    async def _leave(self) -> None:
        joined, self._joined = self._joined, None
        if joined is None:
            return
        assert joined.process.stdin is not None and joined.watching is not None
        joined.process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await joined.process.wait()
        await end_leftover(joined.recorded)
        await joined.watching


def _files(folder: Path) -> MembershipFiles:
    return MembershipFiles(folder / "cluster")


async def _spawn(folder: Path) -> tuple[asyncio.subprocess.Process, str]:
    with open_log(folder / "node.log") as output:
        temporary = temporary_folder()
        argv = (
            sys.executable,
            "-m",
            "fleet_agent.load.cluster.load_host_process",
            "--cluster",
            str(_files(folder).folder),
            "--temporary",
            temporary,
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=_env(folder),
            )
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return process, temporary


def _env(folder: Path) -> Mapping[str, str]:
    return driver_env(os.environ, folder)


def _check_membership(membership: Membership) -> None:
    """Raise ConfigError if this host cannot have the membership: it has fewer cores than shards, or
    the address belongs to another host.
    """
    cpus = max(os.cpu_count() or 1, _MIN_CORES)
    if membership.cores > cpus:
        message = (
            f"host {membership.host} has {cpus} cores, but would run {membership.cores} shards"
        )
        raise ConfigError(message, "lower load.shards, or choose more load hosts")
    try:
        family = socket.AF_INET6 if ip_address(membership.address).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((membership.address, 0))
    except ValueError:
        raise ConfigError(
            f"address {membership.address!r} of host {membership.host} is not an IP address"
        ) from None
    except OSError as error:
        message = (
            f"host {membership.host} does not own address {membership.address}: {error.strerror}"
        )
        hint = (
            "set an address of the host itself in the fleet file: "
            "hosts behind network address translation cannot join a load"
        )
        raise ConfigError(message, hint) from error


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port
