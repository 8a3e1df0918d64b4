"""Starts and stops Ray's processes on one host of an attempt's cluster: the lead or a load host.

`ray start` and `ray.init` open two ports that this cluster must not have: a client server at a
fixed port, and the autoscaler's metrics without authentication on all addresses. Both use Ray's own
Node class, which can leave these ports out.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from typing import Any

from fleet_agent.load.cluster.membership import Membership, MembershipFiles, ray_environment
from fleet_agent.load.workers.ray_session import SETTINGS, end_node, start_node
from fleet_agent.load.workers.ray_temporary import temporary_folder


class RayNode:
    """Runs Ray on this host. Start it once per process. Ray's processes are children of this
    process and end with it.
    """

    def __init__(self, membership: Membership, files: MembershipFiles, temporary: str = "") -> None:
        """Use `temporary`, an empty folder with a short path, for Ray. If it is empty, `start`
        creates a folder.
        """
        self.membership = membership
        self.temporary = temporary
        self.started_s = 0.0
        self._files = files
        self._node: Any = None
        self._ray: Any = None

    @property
    def is_lead(self) -> bool:
        """Return whether this host is the lead, whose Ray cluster the other hosts join."""
        return bool(self.membership.hosts)

    def start(self) -> Any:
        """Start Ray, which takes seconds, and return the module `ray`. Only the lead connects to
        Ray. Raises RuntimeError or OSError.
        """
        began = time.monotonic()
        os.umask(0o077)
        loopback_only = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
        os.environ.update(
            {name: value for name, value in SETTINGS.items() if name not in loopback_only}
        )
        os.environ.update(ray_environment(self.membership, self._files))
        self.temporary = self.temporary or temporary_folder()
        import ray  # here, because it reads its settings from the environment when imported

        try:
            self._node = start_node(self._parameters(), head=self.is_lead, reaper=False)
            if self.is_lead:
                address = self.membership.address
                ray.init(
                    self.membership.lead_address,
                    _node_ip_address=address,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                )
                self._ray = ray
        except Exception as error:  # Ray raises a plain Exception if a start takes longer than 30 s
            raise RuntimeError(str(error) or type(error).__name__) from error
        self.started_s = time.monotonic() - began
        return ray

    def stop(self) -> None:
        """Stop Ray on this host and remove its folder. On the lead this ends the cluster. Does
        nothing if Ray never started.
        """
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None
        if self._node is not None:
            end_node(self._node)
            self._node = None
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def _parameters(self) -> dict[str, Any]:
        _, _, port = self.membership.lead_address.rpartition(":")
        address: dict[str, Any] = (
            {"gcs_server_port": int(port)}
            if self.is_lead
            else {"gcs_address": self.membership.lead_address}
        )
        return {
            **address,
            "node_ip_address": self.membership.address,
            "node_name": self.membership.host,
            "num_cpus": self.membership.cores,
            "temp_dir": os.path.join(self.temporary, "r"),
        }
