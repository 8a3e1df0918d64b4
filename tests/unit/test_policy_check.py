"""Who is refused at a door and in which words; when a certificate's end is told."""

from __future__ import annotations

import json
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fleet_controller.core.controller_api import HostStatus
from fleet_controller.pki.expiry import ExpiringCertificate, expiry_warning
from fleet_controller.pki.issued_certificates import read_issued
from fleet_controller.report.host_output import hosts_table
from fleet_transport.certificate import Certificate
from fleet_transport.revocation_list import Revocation, parse_revocations
from fleet_transport.tls_errors import (
    certificate_refusal_reason,
    describe_rejected_client,
    describe_rejected_server,
    describe_server_handshake_error,
)
from fleet_transport.tls_identity import Role

DAY_S = 86400
NOW_S = 1_790_000_000  # 2026-09-21 14:13 UTC
KEYS = some.sampled_from(
    [
        "version",
        "issued",
        "revoked",
        "fingerprint",
        "role",
        "name",
        "issued_unix_s",
        "expires_unix_s",
        "authority",
    ]
)
OWN = "the certificate of the controller"
CONTROLLERS = frozenset({Role.CONTROLLER})


def certificate(
    role: Role | None = Role.CONTROLLER, begins_s: int = -DAY_S, ends_s: int = DAY_S
) -> Certificate:
    return Certificate("ab" * 32, NOW_S + begins_s, NOW_S + ends_s, role, "ann" if role else "")


def test_a_good_one_is_welcome_to_its_last_second() -> None:
    assert (
        certificate_refusal_reason(certificate(begins_s=0, ends_s=0), CONTROLLERS, None, NOW_S)
        == ""
    )


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (certificate(ends_s=-1), f"{OWN} expired on 2026-09-21"),
        (
            certificate(begins_s=60),
            f"{OWN} is not valid before 2026-09-21 14:14 UTC; here it is 2026-09-21 14:13 UTC",
        ),
        (
            certificate(Role.USER),
            "the certificate is that of user ann; only the controller may connect",
        ),
        (certificate(None), "the certificate names no role of a fleet"),
    ],
)
def test_the_reason_names_owner_and_day(shown: Certificate, reason: str) -> None:
    assert certificate_refusal_reason(shown, CONTROLLERS, None, NOW_S) == reason


def test_a_revoked_one_is_told_first_whatever_else_is_wrong() -> None:
    gone = Revocation("ab" * 32, "user", "ann", NOW_S - DAY_S, "laptop stolen")
    told = certificate_refusal_reason(certificate(Role.USER, ends_s=-5), CONTROLLERS, gone, NOW_S)
    assert told == "the certificate of user ann was revoked on 2026-09-20: laptop stolen"


def test_both_roles_of_a_controllers_door_are_named() -> None:
    told = certificate_refusal_reason(
        certificate(Role.AGENT), frozenset({Role.USER, Role.CONTROLLER}), None, NOW_S
    )
    assert told == "the certificate is that of agent ann; only the controller and users may connect"


@pytest.mark.parametrize("reason", ["", "SOMETHING_NEW", "TLSV1_ALERT_INTERNAL_ERROR"])
def test_an_error_that_is_not_known_is_still_told(reason: str) -> None:
    error = ssl.SSLError(1, "text")
    error.reason = reason
    assert describe_server_handshake_error(error).startswith("the TLS handshake failed (")
    assert describe_rejected_client(error).startswith("the TLS handshake failed (")
    assert describe_rejected_server(error, "x") == ""


def test_a_warning_begins_30_days_before_the_end_and_says_what_to_do() -> None:
    agent = ExpiringCertificate("agent", "gpu01", NOW_S + 30 * DAY_S)
    assert (agent.is_near(NOW_S), agent.is_near(NOW_S + 1)) == (False, True)
    assert (
        expiry_warning(agent, NOW_S + 1)
        == "the certificate of host gpu01 expires in 29 days, on 2026-10-21: `fleetctl deploy gpu01` renews it"
    )
    ended = expiry_warning(ExpiringCertificate("controller", "controller", NOW_S - 1), NOW_S)
    assert (
        ended
        == "the certificate of the controller expired on 2026-09-21: `fleetctl trust rotate` renews it"
    )


def test_a_host_list_tells_of_a_certificate_that_ends_soon_and_of_no_other() -> None:
    near, far = (
        HostStatus(host="gpu01", certificate_expires_unix_s=NOW_S + days * DAY_S)
        for days in (29, 31)
    )
    message = hosts_table([near], NOW_S).rows[0][-1]
    assert (
        message
        == "the certificate of host gpu01 expires in 29 days, on 2026-10-20: `fleetctl deploy gpu01` renews it"
    )
    assert "certificate" not in str(hosts_table([far, HostStatus(host="gpu02")], NOW_S).rows)


@settings(max_examples=60, deadline=None)
@given(
    some.recursive(
        some.none() | some.integers() | some.text(max_size=5),
        lambda part: some.lists(part) | some.dictionaries(KEYS, part),
    )
)
def test_any_json_is_a_list_of_certificates_or_told_to_be_none(value: object) -> None:
    content = json.dumps(value)
    for read in (read_issued, parse_revocations):
        try:
            read(content.encode())
        except ValueError as error:
            assert str(error)
