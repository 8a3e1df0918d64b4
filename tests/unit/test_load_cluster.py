"""Promises about a host's part in a cluster: its secrets are for its user alone, shown in no text,
and gone when they are removed.
"""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fleet_agent.load.cluster.membership import (
    ClusterSecrets,
    Membership,
    MembershipFiles,
    ray_environment,
)
from fleet_controller.pki.certificate_builder import is_issued_by
from fleet_controller.pki.load_cluster_ca import LoadClusterAuthority

PART = Membership(
    "trial", 2, "load1", "10.0.0.7", "10.0.0.1:4000", cores=2, hosts=("load1", "load2"), shards=4
)
SECRETS = ClusterSecrets("aa" * 32, "authority", "certificate", "the key")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_part_is_read_as_it_was_written_by_nobody_but_its_user(tmp_path: Path) -> None:
    files = MembershipFiles(tmp_path / "state" / "cluster")
    files.write(PART, SECRETS)
    files.write(replace(PART, attempt=3), SECRETS)
    assert files.read() == replace(PART, attempt=3)
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.folder.iterdir()} == {0o600}
    files.remove()
    files.remove()
    assert not files.folder.exists()


def test_no_secret_is_shown_with_the_value_that_holds_it() -> None:
    assert "aa" not in repr(SECRETS) and "key" not in repr(SECRETS)


def test_every_node_is_told_to_want_token_and_certificate_and_to_notice_a_loss_soon() -> None:
    told = ray_environment(PART, MembershipFiles(Path("/x")))
    assert told["RAY_USE_TLS"] == "1" and told["RAY_AUTH_TOKEN_PATH"] == "/x/token"
    assert {
        "RAY_TLS_SERVER_CERT",
        "RAY_TLS_SERVER_KEY",
        "RAY_TLS_CA_CERT",
        "RAY_health_check_period_ms",
    } <= told.keys()
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in told
    assert (
        ray_environment(replace(PART, address="127.0.0.1"), MembershipFiles(Path("/x")))[
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
        ]
        == "0"
    )


def test_a_certificate_of_a_cluster_is_for_one_address_at_both_ends_and_for_no_other_cluster() -> (
    None
):
    trust, other = LoadClusterAuthority(NOW), LoadClusterAuthority(NOW)
    issued = trust.issue("load1", "10.0.0.7")
    certificate = x509.load_pem_x509_certificate(issued.certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert is_issued_by(issued.certificate_pem, trust.authority_pem) and not is_issued_by(
        issued.certificate_pem, other.authority_pem
    )
    assert trust.token != other.token and len(trust.token) == 64
    with pytest.raises(ValueError, match="load1"):
        trust.issue("load1", "load1")
