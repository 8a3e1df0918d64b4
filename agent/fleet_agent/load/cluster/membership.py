"""Holds one host's membership in the Ray cluster of an attempt, as a value and as files."""

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
    """The secrets that admit a host to the cluster of one attempt, as PEM texts and a token. The
    authority is the cluster's own.
    """

    token: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Membership:
    """A host's membership. `address` is its IP address in the cluster; `lead_address` is HOST:PORT
    of the lead's Ray.

    `cores` is the number of shards that run here at once, 0 on the lead. For the lead only:
    `hosts`, for which it waits, and `shards`, the number over all of them.
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
        """The trial id and the attempt that the cluster belongs to."""
        return self.trial_id, self.attempt

    @property
    def is_loopback(self) -> bool:
        """Whether the whole cluster runs on this machine."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class MembershipFiles:
    """The files of a membership on its host, in a folder that only its owner can read."""

    folder: Path

    @property
    def membership(self) -> Path:
        """The membership itself, as JSON."""
        return self.folder / "part.json"

    @property
    def token(self) -> Path:
        """The token that every call in the cluster must carry."""
        return self.folder / "token"

    @property
    def authority(self) -> Path:
        """The authority that signed every certificate of the cluster."""
        return self.folder / "authority.crt"

    @property
    def certificate(self) -> Path:
        """This host's certificate, with its address; used as server and as client."""
        return self.folder / "host.crt"

    @property
    def key(self) -> Path:
        """The private key of the certificate."""
        return self.folder / "host.key"

    def write(self, membership: Membership, secrets: ClusterSecrets) -> None:
        """Write the files, replacing earlier ones. Raises OSError."""
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
        """Return the membership. Raises OSError or ValueError."""
        content: dict[str, Any] = json.loads(self.membership.read_text(encoding="utf-8"))
        return Membership(**{**content, "hosts": tuple(content["hosts"])})

    def remove(self) -> None:
        """Remove all files. Does nothing if there are none."""
        shutil.rmtree(self.folder, ignore_errors=True)


def ray_environment(membership: Membership, files: MembershipFiles) -> Mapping[str, str]:
    """Return Ray's environment variables for this membership, in addition to those of any of our
    Rays: token and mutual TLS on every port of Ray, and quick detection of a lost host.

    Ray 2.60 checks that a server's certificate contains the IP address that was called, and that
    the authority signed a client's certificate.
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
