"""The reading of certificates, checked against the library that made them; and of anything else."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as some

from fleet_controller.pki.certificate_builder import Subject, make_authority, make_certificate
from fleet_transport.certificate import parse_certificate, parse_certificates
from fleet_transport.tls_identity import Role, parse_role_uri, role_uri

NOW = datetime(2026, 6, 1, tzinfo=UTC)
AUTHORITY = make_authority(NOW)
AGENT = make_certificate(
    AUTHORITY,
    Subject(Role.AGENT, "gpu01", "gpu01.agent.benchfleet", ("10.0.0.1", "gpu01.lan")),
    NOW,
)
DER = x509.load_pem_x509_certificate(AGENT.certificate_pem).public_bytes(serialization.Encoding.DER)


def test_names_role_and_fingerprint_are_those_of_the_certificate() -> None:
    found = parse_certificates(AGENT.certificate_pem)[0]
    assert (found.role, found.name, found.dns_names) == (
        Role.AGENT,
        "gpu01",
        ("gpu01.agent.benchfleet", "gpu01.lan"),
    )
    assert found.fingerprint == hashlib.sha256(DER).hexdigest()
    assert (found.is_authority, parse_certificates(AUTHORITY.certificate_pem)[0].is_authority) == (
        False,
        True,
    )


@settings(max_examples=30, deadline=None)
@given(
    some.integers(86400 * 180, 86400 * 43000),
    some.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?", fullmatch=True),
)
def test_times_and_names_are_read_as_the_library_reads_them(now_unix_s: int, name: str) -> None:
    now = datetime.fromtimestamp(now_unix_s, UTC)
    made = make_certificate(make_authority(now), Subject(Role.USER, name, "x.user.benchfleet"), now)
    known, found = (
        x509.load_pem_x509_certificate(made.certificate_pem),
        parse_certificates(made.certificate_pem)[0],
    )
    assert found.not_before_unix_s == known.not_valid_before_utc.timestamp()
    assert found.not_after_unix_s == known.not_valid_after_utc.timestamp()
    assert (found.role, found.name) == (Role.USER, name)


def test_a_bundle_is_read_in_its_order() -> None:
    found = parse_certificates(
        b"a comment\n" + AGENT.certificate_pem + b"\n" + AUTHORITY.certificate_pem + AGENT.key_pem
    )
    assert [one.is_authority for one in found] == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        AGENT.key_pem,
        b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----",
    ],
)
def test_a_text_without_a_certificate_is_told(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"no certificate in this file|is damaged"):
        parse_certificates(text)


@settings(max_examples=300, deadline=None)
@given(some.integers(0, len(DER) - 1), some.integers(0, 255), some.integers(0, len(DER)))
def test_a_damaged_certificate_is_read_or_refused_and_never_breaks_the_reader(
    at: int, value: int, length: int
) -> None:
    damaged = (DER[:at] + bytes([value]) + DER[at + 1 :])[:length]
    try:
        parse_certificate(damaged)
    except ValueError:
        return


@settings(max_examples=200, deadline=None)
@given(some.binary(max_size=300))
def test_any_bytes_are_refused_with_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_certificate(content)


def test_a_certificate_with_two_roles_has_none() -> None:
    assert (
        parse_certificate(
            _with_uris("benchfleet://user/ann", "benchfleet://controller/controller")
        ).role
        is None
    )


def _with_uris(*uris: str) -> bytes:
    """The DER of a certificate of the authority that carries them."""
    key = serialization.load_pem_private_key(AUTHORITY.key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    names = [x509.UniformResourceIdentifier(uri) for uri in uris]
    signer = x509.load_pem_x509_certificate(AUTHORITY.certificate_pem)
    made = (
        x509.CertificateBuilder(
            signer.subject, signer.subject, signer.public_key(), 7, NOW, NOW + timedelta(days=1)
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("role", list(Role))
def test_a_role_is_read_back_from_its_uri(role: Role) -> None:
    name = "controller" if role is Role.CONTROLLER else "gpu01"
    assert parse_role_uri(role_uri(role, name)) == (role, name)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(
    "name",
    ["../controller", "controller?x=1", "controller#x", "controller/", "/controller", "a/b", ".", "..", "a b", "a%2e", "-a", "a.", "ä",
     "a\n", "x@controller", "controller:1", "a" * 64],
)  # fmt: skip
def test_a_name_that_is_none_carries_no_role(role: Role, name: str) -> None:
    assert parse_role_uri(role_uri(role, name)) is None


def test_there_is_one_controller_and_one_way_to_write_it() -> None:
    assert parse_role_uri("benchfleet://controller/controller") == (Role.CONTROLLER, "controller")
    for uri in (
        "benchfleet://controller/other",
        "BENCHFLEET://controller/controller",
        "benchfleet://Controller/controller",
        "benchfleet:///controller",
    ):
        assert parse_role_uri(uri) is None


@pytest.mark.parametrize(
    "second", ["benchfleet://agent/../gpu01", "benchfleet://root/x", "BENCHFLEET://agent/gpu01"]
)
def test_a_certificate_with_a_second_name_of_a_fleet_has_no_role(second: str) -> None:
    assert parse_certificate(_with_uris("benchfleet://controller/controller", second)).role is None
    assert (
        parse_certificate(
            _with_uris("benchfleet://controller/controller", "spiffe://elsewhere/x")
        ).role
        is Role.CONTROLLER
    )


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "benchfleet://",
        "benchfleet://agent",
        "benchfleet://agent/",
        "benchfleet://root/x",
        "spiffe://agent/x",
    ],
)
def test_another_uri_carries_no_role(uri: str) -> None:
    assert parse_role_uri(uri) is None


def test_an_authority_that_has_ended_issues_nothing() -> None:
    with pytest.raises(ValueError):
        make_certificate(
            AUTHORITY, Subject(Role.USER, "ann", "ann.user.benchfleet"), NOW + timedelta(days=4000)
        )
