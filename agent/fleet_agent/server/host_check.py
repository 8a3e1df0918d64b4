"""Owns the look at a host that no trial asked for: what stands in the way of trials here, and what would blur them. Starts no server.

Whatever runs goes on undisturbed: memory and processes of GPUs that trials hold are left out of the judgement, and it says so.
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
from fleet_agent.engines.sglang.launch.argv import under_home
from fleet_agent.engines.sglang.launch.container_runtimes import client_environment
from fleet_agent.host import sysfs
from fleet_agent.host.gpus import Reading
from fleet_agent.host.host_state import HostView
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
class Work:
    """What the agent does at the moment. `gpus`: those that trials may use, `held`: those of them that trials have."""

    trials: tuple[str, ...] = ()  # TRIAL/ATTEMPT
    gpus: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    takes_no_trials: str = ""


async def inspect(host: HostView, work: Work, policy: Policy, defaults: ServerDefaults) -> tuple[Finding, ...]:
    """Everything that is found now, the work that goes on first."""
    found = [*_of_work(work), *_of_aside(host, work), *check_disk(host.state), *check_clock(host), *check_compiler()]
    found += [*_of_gpus(await host.read(), work), *check_shm(len(work.gpus))]
    found += [*_of_load(work, os.getloadavg()[0], os.cpu_count() or 1), *_of_limits(), *_of_ports()]
    found += await asyncio.to_thread(lambda: list(_of_pythons(work, policy, defaults)))
    return (*found, *await _of_images(policy))


def _of_work(work: Work) -> Iterator[Finding]:
    if work.trials:
        told = f"{', '.join(work.trials)} {'runs' if len(work.trials) == 1 else 'run'} here and goes on undisturbed"
        held = f"; memory of GPU {', '.join(map(str, work.held))} is not judged" if work.held else ""
        yield Finding("trial_running", told + held)
    if work.takes_no_trials:
        yield Finding("takes_no_trials", work.takes_no_trials, "make room on the disk of the agent's state folder; trials wait until then")


def _of_aside(host: HostView, work: Work) -> Iterator[Finding]:
    aside = {gpu: reason for gpu, reason in host.aside.items() if gpu in work.gpus}
    if aside:
        told = "; ".join(aside.values())
        code = "no_gpu_left" if len(aside) == len(work.gpus) else "gpu_aside"
        yield Finding(code, f"set aside: {told}", "each comes back by itself once its memory is free; end what holds it")


def _of_gpus(reading: Reading, work: Work) -> list[Finding]:
    """As a trial on all of them would be told, but for the memory that running trials use."""
    if not work.gpus and not reading.gpus and not reading.fault:
        return []
    gpus = tuple(replace(gpu, memory_used_mib=None) if gpu.index in work.held else gpu for gpu in reading.gpus)
    processes = tuple(process for process in reading.processes if process.gpu not in work.held)
    indices = work.gpus or tuple(gpu.index for gpu in reading.gpus)
    return check_gpus(replace(reading, gpus=gpus, processes=processes), indices)


def _of_load(work: Work, load: float, cpus: int) -> Iterator[Finding]:
    if not work.trials and load > _BUSY_LOAD * cpus:
        told = f"load average {load:.1f} on {cpus} CPUs while no trial runs"
        yield Finding("host_busy", told, "look at `top`: what uses the CPUs blurs what is measured")


def _of_limits() -> Iterator[Finding]:
    for code, name, number, least in (
        ("limit_files", "open files", resource.RLIMIT_NOFILE, _LEAST_FILES),
        ("limit_processes", "processes", resource.RLIMIT_NPROC, _LEAST_PROCESSES),
    ):
        hard = resource.getrlimit(number)[1]
        if hard not in (resource.RLIM_INFINITY, -1) and hard < least:
            told = f"the agent and its servers may have {hard} {name}"
            yield Finding(code, told, f"raise the limit of the agent's unit to {least} or more")
    memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if memory not in (resource.RLIM_INFINITY, -1) and Path("/sys/class/infiniband").is_dir():
        told = f"locked memory is limited to {memory >> 10} KiB and this host has InfiniBand or RoCE"
        yield Finding("limit_memlock", told, "LimitMEMLOCK=infinity in the agent's unit: RDMA pins its buffers")


def _of_ports() -> Iterator[Finding]:
    """Servers get free ports of the range from which the kernel gives them out."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            yield Finding("no_port", f"no free port on 127.0.0.1: {error.strerror}", "end what holds them")
    words = sysfs.text(Path("/proc/sys/net/ipv4/ip_local_port_range")).split()
    if len(words) == 2 and int(words[1]) - int(words[0]) < _LEAST_PORTS:
        yield Finding("ports_few", f"the kernel gives out ports {words[0]} to {words[1]} only", "widen net.ipv4.ip_local_port_range")


def _of_pythons(work: Work, policy: Policy, defaults: ServerDefaults) -> Iterator[Finding]:
    """The Python that servers get by default, and those that the host's configuration names."""
    needed = [defaults.python or PATH_PYTHON] if work.gpus and not defaults.image else [defaults.python]
    named = [program for program in policy.python if not _GLOB.intersection(program)]
    for program in dict.fromkeys(filter(None, (*needed, *named))):
        if shutil.which(under_home(program, str(Path.home()))) is None:
            told = f"{program} is not on this host or may not be executed"
            yield Finding("server_python_missing", told, "install it, or correct `server.python` and `allow.python` of this host")


async def _of_images(policy: Policy) -> list[Finding]:
    """Images that are allowed by their whole name; a pattern names none."""
    images = [image for image in policy.images if image and not _GLOB.intersection(image)]
    if not images:
        return []
    runtimes = [program for program in map(shutil.which, ("docker", "podman")) if program]
    if not runtimes:
        return [Finding("no_runtime", f"{', '.join(images)}: neither docker nor podman is on this host", "install one of them")]
    there = await asyncio.gather(*(_is_there(runtimes, image) for image in images))
    return [
        Finding("image_missing", f"image {image} is not on this host", f"pull it first: `{Path(runtimes[0]).name} pull {image}`")
        for image, found in zip(images, there, strict=True)
        if not found
    ]


async def _is_there(runtimes: Sequence[str], image: str) -> bool:
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
