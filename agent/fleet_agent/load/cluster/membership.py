"""Defines the membership of a host in the Ray cluster of an attempt, as a value and as files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

MAX_HOLD_S: Final = 86_400.0  # also the limit if the controller sets none
# for all hosts to join after the lead's Ray has started; the first start on a slow disk takes 25 s
JOIN_LIMIT_S: Final = 120.0
SILENCE_S: Final = 8  # a load host without contact to its lead for this long ends
# Ray's own switch for "this node is 127.0.0.1"
_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

# With Ray's defaults a disconnected host is noticed after 64 s, with these after 4 to 5 s. They
# apply to every node and to the driver.
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
    """Holds the secrets that admit a host to the cluster of one attempt: a token and PEM texts.
    Each cluster has its own certificate authority.
    """

    token: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Membership:
    """Holds what one host needs to know to be a member of a cluster.

    `address`: the host's IP address in the cluster.
    `lead_address`: HOST:PORT of the lead's Ray.
    `cores`: the number of shards that run on this host at the same time; 0 on the lead.
    `hosts`: the load hosts that the lead waits for; empty on a load host.
    `shards`: the number of shards on all load hosts; set only on the lead.
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
        """Return the trial id and the attempt that the cluster belongs to."""
        return self.trial_id, self.attempt

    @property
    def is_loopback(self) -> bool:
        """Return whether all hosts of the cluster are this machine."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class MembershipFiles:
    """Names the files of a membership. They are in a folder that only its owner can read."""

    folder: Path

    @property
    def membership(self) -> Path:
        """Return the path of the membership itself, as JSON."""
        return self.folder / "part.json"

    @property
    def token(self) -> Path:
        """Return the path of the token that every call in the cluster must carry."""
        return self.folder / "token"

    @property
    def authority(self) -> Path:
        """Return the path of the certificate of the cluster's authority, which signed all its
        certificates.
        """
        return self.folder / "authority.crt"

    @property
    def certificate(self) -> Path:
        """Return the path of this host's certificate, which names the host's address. It serves as
        server and client certificate.
        """
        return self.folder / "host.crt"

    @property
    def key(self) -> Path:
        """Return the path of the private key of this host's certificate."""
        return self.folder / "host.key"

    def write(self, membership: Membership, secrets: ClusterSecrets) -> None:
        """Write the files in place of earlier files. Raises OSError."""
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
        """Return the membership that the file holds. Raises OSError or ValueError."""
        content: dict[str, Any] = json.loads(self.membership.read_text(encoding="utf-8"))
        return Membership(**{**content, "hosts": tuple(content["hosts"])})

    def remove(self) -> None:
        """Remove all files. Does nothing if no file exists."""
        shutil.rmtree(self.folder, ignore_errors=True)


def ray_environment(membership: Membership, files: MembershipFiles) -> Mapping[str, str]:
    """Return the environment variables that Ray needs for this membership, in addition to SETTINGS.

    They set the token, mutual TLS on every port of Ray, and quick detection of a lost host. Ray
    2.60 checks two things: a server's certificate contains the IP address that was called, and the
    authority has signed a client's certificate.
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
