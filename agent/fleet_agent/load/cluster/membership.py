"""Owns one host's part in the Ray cluster of an attempt as a value and as files of its own; starts
no Ray.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

MAX_HOLD_S: Final = 86_400.0  # of a load host whose controller named no limit
JOIN_LIMIT_S: Final = (
    120.0  # for all to be there once the lead's Ray runs; the first start on a slow disk takes 25 s
)
SILENCE_S: Final = 8  # a load host that hears nothing of its lead for so long has lost it, and ends
_LOOPBACK: Final = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"
}  # Ray's own switch for "this node is 127.0.0.1"

# A cut host is noticed after 64 s by Ray's defaults and after 4 to 5 s by these. They hold on every
# node and in the driver.
_FAILURE_DETECTION: Final = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "2000",
    "RAY_grpc_client_keepalive_timeout_ms": "2000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(SILENCE_S),
}


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """What lets a host into the cluster of one attempt and keeps all others out. PEM texts; the
    authority is the cluster's own.
    """

    token: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Membership:
    """A host's part. `address`: its IP address in the cluster; `lead_address`: HOST:PORT of the
    lead's Ray.

    `cores`: shards that run here at once, 0 on the lead. Of the lead alone: `hosts`, which it waits
    for, and `shards` over all of them.
    """

    trial_id: str
    attempt: int
    host: str
    address: str
    lead_address: str
    cores: int = 0
    hold_limit_s: float = 0.0
    hosts: tuple[str, ...] = ()
    shards: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The attempt that it is a part of."""
        return self.trial_id, self.attempt

    @property
    def is_loopback(self) -> bool:
        """The whole cluster is on this machine."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class MembershipFiles:
    """Where a part lies on its host: a folder for its owner alone."""

    folder: Path

    @property
    def membership(self) -> Path:
        """The part itself, as JSON."""
        return self.folder / "part.json"

    @property
    def token(self) -> Path:
        """What every call in the cluster must carry."""
        return self.folder / "token"

    @property
    def authority(self) -> Path:
        """Who signed every certificate of the cluster."""
        return self.folder / "authority.crt"

    @property
    def certificate(self) -> Path:
        """This host's, with its address; shown as server and as client."""
        return self.folder / "host.crt"

    @property
    def key(self) -> Path:
        """Of the certificate."""
        return self.folder / "host.key"

    def write(self, membership: Membership, secrets: ClusterSecrets) -> None:
        """Put the part there in place of what was. Raises OSError."""
        self.remove()
        self.folder.mkdir(parents=True, mode=0o700)
        texts = {
            self.token: secrets.token,
            self.authority: secrets.authority,
            self.certificate: secrets.certificate,
            self.key: secrets.key,
        }
        for path, text in {**texts, self.membership: json.dumps(asdict(membership))}.items():
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                file.write(text)

    def read(self) -> Membership:
        """The part. Raises OSError or ValueError."""
        content: dict[str, Any] = json.loads(self.membership.read_text(encoding="utf-8"))
        return Membership(**{**content, "hosts": tuple(content["hosts"])})

    def remove(self) -> None:
        """Forget the secrets; harmless when there are none."""
        shutil.rmtree(self.folder, ignore_errors=True)


def ray_environment(membership: Membership, files: MembershipFiles) -> Mapping[str, str]:
    """Ray's environment for this part, beside that of any Ray of ours: token and mutual TLS on
    every port of its own, quick notice of loss.

    Ray 2.60 checks that a server's certificate carries the IP address that was called, and that a
    client's is signed by the authority.
    """
    return {
        **_FAILURE_DETECTION,
        **(_LOOPBACK if membership.is_loopback else {}),
        "RAY_AUTH_TOKEN_PATH": str(files.token),
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(files.certificate),
        "RAY_TLS_SERVER_KEY": str(files.key),
        "RAY_TLS_CA_CERT": str(files.authority),
    }
