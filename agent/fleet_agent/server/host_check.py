"""Owns the look at a host that no trial asked for: what stands in the way of trials here, and what
would blur them. Starts no server.

Whatever runs goes on undisturbed: memory and processes of GPUs that trials hold are left out of the
judgement, and it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_agent.core.admission.host_policy import PATH_PYTHON, Policy, ServerDefaults
from fleet_agent.engines.sglang.launch.argv import expand_home
from fleet_agent.engines.sglang.launch.container_runtimes import client_environment
from fleet_agent.host import sysfs
from fleet_agent.host.gpus import GpuReading
from fleet_agent.host.host_state import HostState
from fleet_agent.server.host_findings import Finding
from fleet_agent.server.preflight import (
    check_clock,
    check_compiler,
    check_disk,
    check_gpus,
    check_shm,
)

_BUSY_LOAD = 0.25  # runnable processes a CPU, when no trial runs
_LEAST_FILES, _LEAST_PROCESSES = 65_536, 16_384  # of a server with eight ranks and many connections
_LEAST_PORTS = 2_000
_IMAGE_LIMIT_S = 10.0
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class AgentActivity:
    """What the agent does at the moment. `gpus`: those that trials may use, `held`: those of them
    that trials have.
    """

    trials: tuple[str, ...] = ()  # TRIAL/ATTEMPT
    gpus: tuple[int, ...] = ()
    gpus_in_use: tuple[int, ...] = ()
    takes_no_trials: str = ""


async def inspect_host(
    host: HostState, activity: AgentActivity, policy: Policy, defaults: ServerDefaults
) -> tuple[Finding, ...]:
    """Everything that is found now, the work that goes on first."""
    found = [
        *_check_activity(activity),
        *_check_quarantined(host, activity),
        *check_disk(host.state),
        *check_clock(host),
        *check_compiler(),
    ]
    found += [*_check_reading(await host.read_gpus(), activity), *check_shm(len(activity.gpus))]
    found += [
        *_check_load_average(activity, os.getloadavg()[0], os.cpu_count() or 1),
        *_check_limits(),
        *_check_port_range(),
    ]
    found += await asyncio.to_thread(lambda: list(_check_pythons(activity, policy, defaults)))
    return (*found, *await _check_images(policy))


def _check_activity(activity: AgentActivity) -> Iterator[Finding]:
    if activity.trials:
        message = f"{', '.join(activity.trials)} {'runs' if len(activity.trials) == 1 else 'run'} here and goes on undisturbed"
        held = (
            f"; memory of GPU {', '.join(map(str, activity.gpus_in_use))} is not judged"
            if activity.gpus_in_use
            else ""
        )
        yield Finding("trial_running", message + held)
    if activity.takes_no_trials:
        yield Finding(
            "takes_no_trials",
            activity.takes_no_trials,
            "make room on the disk of the agent's state folder; trials wait until then",
        )


def _check_quarantined(host: HostState, activity: AgentActivity) -> Iterator[Finding]:
    quarantined = {gpu: reason for gpu, reason in host.quarantined.items() if gpu in activity.gpus}
    if quarantined:
        reasons = "; ".join(quarantined.values())
        code = "no_gpu_left" if len(quarantined) == len(activity.gpus) else "gpu_aside"
        yield Finding(
            code,
            f"set aside: {reasons}",
            "each comes back by itself once its memory is free; end what holds it",
        )


def _check_reading(reading: GpuReading, activity: AgentActivity) -> list[Finding]:
    """As a trial on all of them would be told, but for the memory that running trials use."""
    if not activity.gpus and not reading.gpus and not reading.fault:
        return []
    gpus = tuple(
        replace(gpu, memory_used_mib=None) if gpu.index in activity.gpus_in_use else gpu
        for gpu in reading.gpus
    )
    processes = tuple(
        process for process in reading.processes if process.gpu not in activity.gpus_in_use
    )
    indices = activity.gpus or tuple(gpu.index for gpu in reading.gpus)
    return check_gpus(replace(reading, gpus=gpus, processes=processes), indices)


def _check_load_average(activity: AgentActivity, load: float, cpus: int) -> Iterator[Finding]:
    if not activity.trials and load > _BUSY_LOAD * cpus:
        message = f"load average {load:.1f} on {cpus} CPUs while no trial runs"
        yield Finding(
            "host_busy", message, "look at `top`: what uses the CPUs blurs what is measured"
        )


def _check_limits() -> Iterator[Finding]:
    for code, name, number, least in (
        ("limit_files", "open files", resource.RLIMIT_NOFILE, _LEAST_FILES),
        ("limit_processes", "processes", resource.RLIMIT_NPROC, _LEAST_PROCESSES),
    ):
        hard = resource.getrlimit(number)[1]
        if hard not in (resource.RLIM_INFINITY, -1) and hard < least:
            message = f"the agent and its servers may have {hard} {name}"
            yield Finding(code, message, f"raise the limit of the agent's unit to {least} or more")
    memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if memory not in (resource.RLIM_INFINITY, -1) and Path("/sys/class/infiniband").is_dir():
        message = (
            f"locked memory is limited to {memory >> 10} KiB and this host has InfiniBand or RoCE"
        )
        yield Finding(
            "limit_memlock",
            message,
            "LimitMEMLOCK=infinity in the agent's unit: RDMA pins its buffers",
        )


def _check_port_range() -> Iterator[Finding]:
    """Servers get free ports of the range from which the kernel gives them out."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            yield Finding(
                "no_port", f"no free port on 127.0.0.1: {error.strerror}", "end what holds them"
            )
    words = sysfs.read_text(Path("/proc/sys/net/ipv4/ip_local_port_range")).split()
    if len(words) == 2 and int(words[1]) - int(words[0]) < _LEAST_PORTS:
        yield Finding(
            "ports_few",
            f"the kernel gives out ports {words[0]} to {words[1]} only",
            "widen net.ipv4.ip_local_port_range",
        )


def _check_pythons(
    activity: AgentActivity, policy: Policy, defaults: ServerDefaults
) -> Iterator[Finding]:
    """The Python that servers get by default, and those that the host's configuration names."""
    needed = (
        [defaults.python or PATH_PYTHON]
        if activity.gpus and not defaults.image
        else [defaults.python]
    )
    named = [program for program in policy.python if not _GLOB.intersection(program)]
    for program in dict.fromkeys(filter(None, (*needed, *named))):
        if shutil.which(expand_home(program, str(Path.home()))) is None:
            message = f"{program} is not on this host or may not be executed"
            yield Finding(
                "server_python_missing",
                message,
                "install it, or correct `server.python` and `allow.python` of this host",
            )


async def _check_images(policy: Policy) -> list[Finding]:
    """Images that are allowed by their whole name; a pattern names none."""
    images = [image for image in policy.images if image and not _GLOB.intersection(image)]
    if not images:
        return []
    runtimes = [program for program in map(shutil.which, ("docker", "podman")) if program]
    if not runtimes:
        return [
            Finding(
                "no_runtime",
                f"{', '.join(images)}: neither docker nor podman is on this host",
                "install one of them",
            )
        ]
    there = await asyncio.gather(*(_has_image(runtimes, image) for image in images))
    return [
        Finding(
            "image_missing",
            f"image {image} is not on this host",
            f"pull it first: `{Path(runtimes[0]).name} pull {image}`",
        )
        for image, found in zip(images, there, strict=True)
        if not found
    ]


async def _has_image(runtimes: Sequence[str], image: str) -> bool:
    for program in runtimes:
        process = await asyncio.create_subprocess_exec(
            *(program, "image", "inspect", "--", image),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=client_environment(os.environ),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_IMAGE_LIMIT_S):
                if await process.wait() == 0:
                    return True
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return False
