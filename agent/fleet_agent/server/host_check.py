"""Implements the host check: finds what prevents trials on this host or makes results imprecise.

Running trials are not disturbed. The memory and the processes of the GPUs that they use are not
judged, and a finding says so.
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
from fleet_agent.engines.sglang.launch.server_command import API_KEY_FILE_VERSIONS
from fleet_agent.engines.sglang.proof.installed_versions import read_installed_versions
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
from fleet_knowledge.release import Release

_BUSY_LOAD = 0.25  # runnable processes a CPU, when no trial runs
_LEAST_FILES, _LEAST_PROCESSES = 65_536, 16_384  # of a server with eight ranks and many connections
_LEAST_PORTS = 2_000
_IMAGE_LIMIT_S = 10.0
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class AgentActivity:
    """Describes what the agent is doing.

    `gpus` are the indices of the GPUs that trials may use. `gpus_in_use` are the indices of the
    GPUs that running trials hold. `takes_no_trials` is the reason why the agent accepts no trials.
    It is empty if the agent accepts trials.
    """

    trials: tuple[str, ...] = ()  # TRIAL/ATTEMPT
    gpus: tuple[int, ...] = ()
    gpus_in_use: tuple[int, ...] = ()
    takes_no_trials: str = ""


async def inspect_host(
    host: HostState, activity: AgentActivity, policy: Policy, defaults: ServerDefaults
) -> tuple[Finding, ...]:
    """Check the host now and return all findings. The finding about running trials comes first."""
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
        trials = ", ".join(activity.trials)
        message = f"these trials run on this host and were not disturbed: {trials}"
        if activity.gpus_in_use:
            gpus = ", ".join(map(str, activity.gpus_in_use))
            message += f"; the memory of GPU {gpus} is not judged"
        yield Finding("trial_running", message)
    if activity.takes_no_trials:
        yield Finding(
            "takes_no_trials",
            activity.takes_no_trials,
            "free space on the disk of the agent's state folder; trials wait until then",
        )


def _check_quarantined(host: HostState, activity: AgentActivity) -> Iterator[Finding]:
    quarantined = {gpu: reason for gpu, reason in host.quarantined.items() if gpu in activity.gpus}
    if quarantined:
        reasons = "; ".join(quarantined.values())
        code = "no_gpu_left" if len(quarantined) == len(activity.gpus) else "gpu_aside"
        yield Finding(
            code,
            f"quarantined: {reasons}",
            "end the processes that hold the memory; a GPU is used again once its memory is free",
        )


def _check_reading(reading: GpuReading, activity: AgentActivity) -> list[Finding]:
    """Return the findings about the GPUs, as for a trial on all of them. The GPUs of running trials
    are checked without their memory and processes.
    """
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
        message = f"the load average is {load:.1f} on {cpus} CPUs while no trial runs"
        yield Finding(
            "host_busy",
            message,
            "find with `top` what uses the CPUs: other programs make measurements imprecise",
        )


def _check_limits() -> Iterator[Finding]:
    for code, name, number, least in (
        ("limit_files", "open files", resource.RLIMIT_NOFILE, _LEAST_FILES),
        ("limit_processes", "processes", resource.RLIMIT_NPROC, _LEAST_PROCESSES),
    ):
        hard = resource.getrlimit(number)[1]
        if hard not in (resource.RLIM_INFINITY, -1) and hard < least:
            message = f"the agent and its servers may have at most {hard} {name}"
            yield Finding(
                code, message, f"raise this limit to {least} or more in the agent's systemd unit"
            )
    memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if memory not in (resource.RLIM_INFINITY, -1) and Path("/sys/class/infiniband").is_dir():
        limit_kib = memory >> 10
        message = (
            f"the agent may lock at most {limit_kib} KiB of memory, but this host has InfiniBand "
            "or RoCE"
        )
        yield Finding(
            "limit_memlock",
            message,
            "set LimitMEMLOCK=infinity in the agent's systemd unit: RDMA locks its buffers",
        )


def _check_port_range() -> Iterator[Finding]:
    """Check the kernel's range of local ports. Servers get their ports from this range."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            yield Finding(
                "no_port",
                f"there is no free port on 127.0.0.1: {error.strerror}",
                "end processes that hold ports",
            )
    words = sysfs.read_text(Path("/proc/sys/net/ipv4/ip_local_port_range")).split()
    if len(words) == 2 and int(words[1]) - int(words[0]) < _LEAST_PORTS:
        first, last = words
        yield Finding(
            "ports_few",
            f"the kernel assigns only the local ports from {first} to {last}",
            "widen net.ipv4.ip_local_port_range",
        )


def _check_pythons(
    activity: AgentActivity, policy: Policy, defaults: ServerDefaults
) -> Iterator[Finding]:
    """Check that the default Python of servers exists, and each Python that the host's policy
    names.
    """
    needed = (
        [defaults.python or PATH_PYTHON]
        if activity.gpus and not defaults.image
        else [defaults.python]
    )
    named = [program for program in policy.python if not _GLOB.intersection(program)]
    for program in dict.fromkeys(filter(None, (*needed, *named))):
        if shutil.which(expand_home(program, str(Path.home()))) is None:
            message = f"{program} is not on this host or cannot be executed"
            yield Finding(
                "server_python_missing",
                message,
                "install this Python, or correct `server.python` and `allow.python` of this host",
            )
        else:
            yield from _check_api_key(program)


def _check_api_key(program: str) -> Iterator[Finding]:
    """Check whether the SGLang of this Python can read an API key from a file."""
    path = shutil.which(expand_home(program, str(Path.home())))
    installed = read_installed_versions(Path(path), ("sglang",)) if path else {}
    version = installed.get("sglang", "")
    if version and not API_KEY_FILE_VERSIONS.contains(Release.parse(version)):
        yield Finding(
            "server_without_key",
            f"SGLang {version} of {program} takes an API key only on its command line, which every "
            "user of this host can read: its servers get none, and every user can send requests "
            "to them",
            f"install SGLang {API_KEY_FILE_VERSIONS.first} or later; until then the gate "
            "foreign_requests voids the runs that such requests disturb",
        )


async def _check_images(policy: Policy) -> list[Finding]:
    """Check that images exist on this host which the policy allows by their full names. Patterns
    are not checked.
    """
    images = [image for image in policy.images if image and not _GLOB.intersection(image)]
    if not images:
        return []
    runtimes = [program for program in map(shutil.which, ("docker", "podman")) if program]
    if not runtimes:
        names = ", ".join(images)
        return [
            Finding(
                "no_runtime",
                f"this host has neither docker nor podman, which the images {names} need",
                "install docker or podman",
            )
        ]
    runtime = Path(runtimes[0]).name
    there = await asyncio.gather(*(_has_image(runtimes, image) for image in images))
    return [
        Finding(
            "image_missing",
            f"image {image} is not on this host",
            f"pull the image first: `{runtime} pull {image}`",
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
