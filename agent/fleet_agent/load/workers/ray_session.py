"""Starts and stops the local Ray that runs the load. It listens only on loopback, requires a token,
and has its own folder with a short path.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fleet_agent.host.processes import processes_of_session
from fleet_agent.load.workers.ray_temporary import temporary_folder

CORES: Final = 2  # workers for shards
LOOPBACK: Final = "127.0.0.1"
# Ray allows a start 30 s, which may be too short on a busy host; the agent waits for all attempts
START_ATTEMPTS: Final = 3
OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # Ray's minimum is 75 MB

# These are set before `import ray`, which reads them. RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 is Ray's
# own switch for "this node is 127.0.0.1 and listens there only"; with
# `_node_ip_address="127.0.0.1"` alone, Ray uses the host's address (observed in 2.60).
SETTINGS: Final = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_metrics_collection": "0",
    # a model that fills the memory must not make Ray kill the load's workers
    "RAY_memory_monitor_refresh_ms": "0",
}


def start_node(parameters: Mapping[str, Any], *, head: bool, reaper: bool) -> Any:
    """Start the Ray processes that a load needs on one host: raylet, its two agents and, on the
    head, gcs_server.

    `ray.init` and `ray start` also start the API server of a dashboard, an autoscaler and a log
    monitor. The load does not need them, and they cost half of the CPU time of a start and 260 MB.
    Both use Ray's own Node class, which can leave them out. With `reaper`, the kernel ends the
    processes when this process dies. Raises what Ray raises.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class LeanNode(Node):
        def start_api_server(self, **_: Any) -> None:
            self._webui_url = ""

    needless = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    params: Mapping[str, Any] = {
        "num_gpus": 0,
        "object_store_memory": OBJECT_STORE_BYTES,
        **needless,
        **parameters,
    }
    return LeanNode(RayParams(**params), head=head, shutdown_at_exit=False, spawn_reaper=reaper)


def end_node(node: Any) -> None:
    """Kill the processes of `start_node` that are still running."""
    node.kill_all_processes(check_alive=False, allow_graceful=False)


class RaySession:
    """Runs one local Ray. Start it once per process. Ray's processes are children of this process
    and end with it.
    """

    def __init__(self, temporary: str = "") -> None:
        """Use `temporary`, an empty folder with a short path, for Ray. If it is empty, `start`
        creates a folder.
        """
        self.temporary = temporary
        self.started_s = 0.0
        self._ray: Any = None
        self._node: Any = None

    def start(self) -> Any:
        """Start Ray, which takes seconds, and return the module `ray`. Raises RuntimeError or
        OSError if Ray cannot start.
        """
        began = time.monotonic()
        os.umask(0o077)
        os.environ.update(SETTINGS)
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # this folder is private; Ray makes its own folder inside it accessible to all users
        self.temporary = self.temporary or temporary_folder()
        import ray  # here, because it reads its settings from the environment when imported

        for left in reversed(range(START_ATTEMPTS)):
            try:
                self._init(ray)
                break
            except RuntimeError:
                self._end(ray)
                end_own_session()
                if not left:
                    raise
        self._ray = ray
        self.started_s = time.monotonic() - began
        return ray

    def _init(self, ray: Any) -> None:
        parameters = {
            "node_ip_address": LOOPBACK,
            "num_cpus": CORES,
            "temp_dir": os.path.join(self.temporary, "r"),
        }
        try:
            self._node = start_node(parameters, head=True, reaper=True)
            ray.init(
                self._node.gcs_address,
                _node_ip_address=LOOPBACK,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except Exception as error:  # Ray raises a plain Exception if a start takes longer than 30 s
            raise RuntimeError(str(error) or type(error).__name__) from error

    def _end(self, ray: Any) -> None:
        ray.shutdown()
        if self._node is not None:
            end_node(self._node)
            self._node = None

    def stop(self) -> None:
        """Stop Ray and remove its folder. Does nothing if Ray never started."""
        if self._ray is not None:
            self._end(self._ray)
            self._ray = None
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)


def end_own_session() -> None:
    """Kill the processes that Ray left in the session of this process. The agents of a dead raylet
    would notice its death only after a minute.

    Does nothing if another process leads the session. The fleet-agent also kills these processes,
    unless it has been killed itself.
    """
    if os.getsid(0) != os.getpid():
        return
    for process in processes_of_session(os.getpid()):
        if process.pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


async def wait_for_end_of_ray(process_names: tuple[str, ...] = ("raylet", "gcs_server")) -> str:
    """Wait until one of these processes of Ray ends, although none should end. Return its name.

    A load host has no gcs_server.
    """
    names = {pid: name for pid, name in _children().items() if name in process_names}
    if len(names) < len(process_names):
        return " or ".join(process_names)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    descriptors = []
    for pid, name in names.items():
        descriptor = os.pidfd_open(pid)
        descriptors.append(descriptor)
        loop.add_reader(descriptor, _set_ended, ended, name)
    try:
        return await ended
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def _set_ended(ended: asyncio.Future[str], name: str) -> None:
    if not ended.done():
        ended.set_result(name)


def _children() -> dict[int, str]:
    """Return the process id and the name of each child of this process."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                found[pid] = name
    return found
