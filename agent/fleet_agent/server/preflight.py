"""Implements the preflight: checks disk, model, GPUs, ports and clock right before a launch."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.sglang.launch.argv import expand_home
from fleet_agent.host import sysfs
from fleet_agent.host.clock import is_synchronised
from fleet_agent.host.gpu_memory import classify_holder
from fleet_agent.host.gpus import GpuReading
from fleet_agent.host.host_state import HostState
from fleet_agent.host.model_files import describe_missing
from fleet_agent.load.client.native.library import find_compiler
from fleet_agent.server.host_findings import Finding
from fleet_agent.storage.disk_space import MIN_FREE_BYTES
from fleet_agent.storage.secrets import SECRET_SCHEME
from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.host import gpu_processes, nvswitch_fabric
from fleet_knowledge.host.gpu import Gpu
from fleet_knowledge.host.gpu_comparison import find_inequalities
from fleet_knowledge.nccl.variable_rules import files_needed
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec

_DISK_LOW_BYTES = 1 << 30
_SHM_LEAST_BYTES = 1 << 30
_BUSY_SHARE = 0.10  # a GPU with more of its memory in use before the launch is busy
_MODEL_ARGUMENTS = ("speculative_draft_model_path", "tokenizer_path")


async def preflight(spec: TrialSpec, place: LaunchPlace, host: HostState) -> tuple[Finding, ...]:
    """Return all findings, of any severity, that speak against launching this trial now.

    This changes nothing on the host. There is no preflight for an external server.
    """
    if spec.engine.kind is EngineKind.EXTERNAL:
        return ()
    found = [
        *await asyncio.to_thread(_check_paths, spec, host),
        *_check_ports(spec.engine, place),
        *check_clock(host),
        *check_compiler(),
    ]
    if host.uses_gpus(spec.engine.kind) and place.gpus:
        found += check_gpus(await host.read_gpus(), place.gpus)
        found += check_shm(len(place.gpus)) if not spec.engine.container.image else ()
    return tuple(found)


def _check_paths(spec: TrialSpec, host: HostState) -> list[Finding]:
    found = list(check_disk(host.state))
    if spec.engine.kind is EngineKind.SGLANG:
        found += (
            *check_model(spec.engine),
            *_check_named_files(spec.engine),
            *_check_python(spec.engine),
        )
    return found


def check_disk(folder: Path) -> Iterator[Finding]:
    """Check the free space on the disk of the state folder, which holds the journal, the logs and
    the raw data of runs.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if free < _DISK_LOW_BYTES:
        code = "preflight_disk" if free < MIN_FREE_BYTES else "disk_low"
        yield Finding(
            code,
            f"{free >> 20} MiB are free in {folder}",
            "free space on this disk, or start the agent with another folder as --state",
        )


def check_model(engine: EngineSpec) -> Iterator[Finding]:
    """Check the files of model, draft model and tokeniser. Only paths are checked: the server
    itself looks up model names of the hub.
    """
    named = [
        ("model.path", engine.model_path),
        *((f"engine.args.{name}", engine.args.get(name)) for name in _MODEL_ARGUMENTS),
    ]
    for key, value in named:
        path = _path_on_host(engine, value)
        if path is None:
            continue
        missing = describe_missing(
            path,
            is_tokenizer=key.endswith("tokenizer_path"),
            is_dummy=engine.args.get("load_format") == "dummy",
        )
        if missing:
            code = "preflight_model_incomplete" if path.exists() else "preflight_model_missing"
            yield Finding(
                code, f"{key}: {missing}", f"correct {key}, or copy the model to this host"
            )


def _path_on_host(engine: EngineSpec, value: object) -> Path | None:
    """Return the path on this host that `value` refers to. For a server in a container, the path is
    translated by the container's mounts.

    Return None for a model name of the hub.
    """
    text = expand_home(value, str(Path.home()))
    if not isinstance(text, str) or not text.startswith(("/", "./", "../")):
        return None
    if engine.container.image:
        for inside, outside in sorted(
            engine.container.mounts.items(), key=lambda mount: -len(mount[0])
        ):
            if text == inside or text.startswith(inside.rstrip("/") + "/"):
                source = expand_home(outside.removesuffix(":ro"), str(Path.home()))
                return Path(source + text[len(inside.rstrip("/")) :])
    return Path(text)


def _check_named_files(engine: EngineSpec) -> Iterator[Finding]:
    """Check that the files exist that environment variables name.

    NCCL runs without a file that it cannot read, and only logs this.
    """
    if engine.container.image:
        return
    for name, value in files_needed(engine.env):
        if not value.startswith(SECRET_SCHEME) and not Path(value).is_file():
            message = f"engine.env.{name}: {value} is not on this host"
            yield Finding(
                "preflight_file_missing",
                message,
                "copy the file there, or remove the variable: NCCL would run without the file",
            )


def _check_python(engine: EngineSpec) -> Iterator[Finding]:
    if engine.container.image or not engine.python:
        return
    program = expand_home(engine.python, str(Path.home()))
    if shutil.which(program) is None:
        message = f"engine.python: {program} is not on this host or cannot be executed"
        yield Finding(
            "preflight_python_missing",
            message,
            "set engine.python to the Python of a virtual environment on this host that has SGLang",
        )


def _check_ports(engine: EngineSpec, place: LaunchPlace) -> Iterator[Finding]:
    if place.port and not is_port_free("127.0.0.1", place.port):
        yield Finding(
            "port_in_use",
            f"port {place.port} of 127.0.0.1 is in use",
            "try again: the port was free a moment ago",
        )
    for key, value in _dist_ports(engine):
        port = str(value).rpartition(":")[2]
        if port.isdecimal() and 0 < int(port) < 65536 and not is_port_free("", int(port)):
            message = f"{key}: port {port} is in use on this host"
            yield Finding(
                "dist_port_in_use",
                message,
                "choose another port, or wait: an earlier server may still hold it in TIME_WAIT",
            )


def _dist_ports(engine: EngineSpec) -> Iterable[tuple[str, object]]:
    """Yield (key, value) for each rendezvous port that the server on this host will listen on."""
    if engine.gang.rank == 0 and engine.gang.init_address:
        yield "rendezvous", engine.gang.init_address
    for name in ("dist_init_addr", "nccl_port"):
        if engine.gang.rank == 0 and engine.args.get(name):
            yield f"engine.args.{name}", engine.args[name]


def is_port_free(address: str, port: int) -> bool:
    """Return whether nothing listens on the port. This binds the port for a moment, as a server
    would.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def check_gpus(reading: GpuReading, indices: Sequence[int]) -> list[Finding]:
    """Check that the driver answers, and that the GPUs `indices` exist, work and
    have free memory.
    """
    if reading.fault:
        code = (
            reading.failure_class
            if reading.failure_class in ("driver_mismatch", "gpu_lost")
            else "no_gpu"
        )
        return [Finding(code, reading.fault, FAILURES[code].hint)]
    gpus = reading.select(tuple(indices))
    missing = sorted(set(indices) - {gpu.index for gpu in gpus})
    if missing and reading.gpus:
        names = ", ".join(f"GPU{index}" for index in missing)
        message = f"{names} not found: the driver shows {len(reading.gpus)} GPUs"
        return [Finding("gpu_lost", message, FAILURES["gpu_lost"].hint)]
    return [*_check_health(gpus), *_check_memory(reading, gpus)]


def _check_health(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.fault:
            yield Finding(
                "gpu_lost", f"GPU{gpu.index} reports {gpu.fault}", FAILURES["gpu_lost"].hint
            )
        if gpu.mig and len(gpus) > 1:
            yield Finding(
                "mig_on",
                f"GPU{gpu.index} is in MIG mode",
                "turn MIG off with `nvidia-smi -i INDEX -mig 0`: MIG slices have no NVLink",
            )
    if problem := nvswitch_fabric.fabric_problem(gpus):
        yield Finding("fabric_manager_down", problem, nvswitch_fabric.fabric_hint())
    for warning in find_inequalities(gpus):
        if warning.code not in ("fabric", "mig"):
            yield Finding("gpus_unequal", warning.message, warning.hint)


def _check_memory(reading: GpuReading, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    indices = {gpu.index for gpu in gpus}
    holders = [classify_holder(process) for process in reading.processes if process.gpu in indices]
    busy = [
        f"GPU{gpu.index} has {gpu.memory_used_mib / 1024:.1f} of "
        f"{gpu.memory_mib / 1024:.1f} GiB in use"
        for gpu in gpus
        if gpu.memory_mib
        and gpu.memory_used_mib
        and gpu.memory_used_mib > _BUSY_SHARE * gpu.memory_mib
    ]
    reason = gpu_processes.describe_unequal_memory(gpus) or "; ".join(busy)
    listed = ", ".join(map(str, holders))
    if reason:
        yield Finding(
            "gpu_busy_leftover",
            f"{reason}; held by {listed or 'no listed process'}",
            gpu_processes.holders_hint(holders),
        )
    elif holders:
        yield Finding(
            "gpu_shared",
            f"other processes use these GPUs: {listed}",
            "ask the owner of these processes to end them: they disturb the measurement",
        )


def check_shm(gpus: int) -> tuple[Finding, ...]:
    """Check the size of /dev/shm. The ranks of a server exchange data through it."""
    size = sysfs.shm_bytes()
    if gpus < 2 or size >= _SHM_LEAST_BYTES:
        return ()
    message = f"/dev/shm has {size >> 20} MiB for {gpus} ranks"
    return (
        Finding(
            "shm_small",
            message,
            "give the container --shm-size 32g or --ipc host; with too little shared memory, NCCL "
            "fails or is slower",
        ),
    )


def check_compiler() -> Iterator[Finding]:
    """Check that there is a C compiler. The load process builds its fast reader with it."""
    if not find_compiler():
        message = (
            "there is no C compiler (cc, gcc or clang) on PATH, so answers are read in Python, "
            "which needs more CPU time"
        )
        yield Finding("no_compiler", message, "install gcc, or set CC in the agent's environment")


def check_clock(host: HostState) -> Iterator[Finding]:
    """Check the wall clock. The dates of events depend on the wall clock, durations do not."""
    if jump_s := host.clock.jumped_s():
        message = f"the wall clock was changed by {jump_s:+.1f} s since the agent started"
        yield Finding(
            "clock_jumped",
            message,
            "do not compare dates of events before and after this change; durations are not "
            "affected",
        )
    if is_synchronised() is False:
        yield Finding(
            "clock_unsynchronised",
            "the kernel reports that its clock is not synchronised",
            "run chrony or systemd-timesyncd",
        )
