"""The trust folder on a real disk: modes, kills at any moment, many at once, damage; revoking,
renewing, replacing the authority.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fleet_controller.pki.authority import Authority
from fleet_controller.pki.expiry import RENEW_BEFORE_S
from fleet_controller.pki.expiry_watcher import ExpiryWatcher
from fleet_controller.pki.initialize import init_trust_folder
from fleet_protos.errors import ConfigError, Conflict, NotFound
from fleet_transport.certificate import parse_certificates
from fleet_transport.revocation_list import RevocationList
from fleet_transport.tls_client import client_context
from fleet_transport.tls_identity import Role, TlsFiles
from tests.fakes import killed_at

LIMIT = 400


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where a sync costs nothing; on the disk when there is none."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


@pytest.fixture
def authority(memory: Path) -> Authority:
    assert init_trust_folder(memory / "trust", "ann")
    return Authority.open(memory / "trust")


def fingerprint(pem: bytes) -> str:
    return parse_certificates(pem)[0].fingerprint


def is_whole(authority: Authority) -> bool:
    """Every pair in it fits, and every list can be read."""
    again = Authority.open(authority.folder)
    for files in (again.controller_files(), again.user_files()):
        client_context(files)
        RevocationList(files.revoked)
    again.issue_user("probe")
    return True


def test_keys_are_their_owners_alone_and_so_is_the_folder(authority: Authority) -> None:
    authority.issue_agent("gpu01")
    authority.renew_controller()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in authority.folder.iterdir()}
    assert [modes[name] for name in ("ca.key", "controller.key", "user.key")] == [0o600] * 3
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    assert not any(mode & 0o022 for mode in modes.values())
    assert not any(
        b"PRIVATE" in path.read_bytes()
        for path in authority.folder.rglob("*")
        if path.is_file() and path.suffix != ".key"
    )


def test_a_umask_that_is_too_wide_changes_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        init_trust_folder(tmp_path / "trust", "ann")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "trust" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "trust").stat().st_mode) == 0o700


def test_a_second_init_keeps_the_authority_and_a_forced_one_keeps_it_beside(
    authority: Authority,
) -> None:
    before = authority.authorities_pem()
    assert init_trust_folder(authority.folder, "bob") is False
    assert authority.authorities_pem() == before
    assert init_trust_folder(authority.folder, "bob", replace=True) is True
    assert authority.authorities_pem() != before
    (aside,) = authority.folder.parent.glob("trust.replaced-*")
    assert (aside / "ca.crt").read_bytes() == before


@pytest.mark.parametrize("call", list(killed_at.CALLS))
def test_a_command_killed_at_any_moment_is_finished_by_the_next(call: str, memory: Path) -> None:
    before = memory / "before" / "trust"
    before.parent.mkdir()
    if call != "init":
        init_trust_folder(before, "me")
        Authority(before).issue_agent("gpu01")
    if call == "finish":
        Authority(before).begin_replacing()
        issued = Authority(before).issue_agent("gpu01")
        Authority(before).mark_installed("gpu01", fingerprint(issued.certificate_pem))
    argv = [sys.executable, "-m", "tests.fakes.killed_at", call, str(memory), str(LIMIT)]
    count = int(subprocess.run(argv, check=True, capture_output=True, timeout=120).stdout)
    assert 10 < count < LIMIT
    for number in range(1, count + 1):
        folder = memory / str(number) / "trust"
        _again(call, folder)
        assert is_whole(Authority(folder))
        assert [
            path.name
            for path in folder.parent.iterdir()
            if path.name not in ("trust", ".trust.lock")
        ] == []
        shutil.rmtree(memory / str(number))


def _again(call: str, folder: Path) -> None:
    """The same command once more, as its user would; then what it promised holds."""
    init_trust_folder(folder, "me")  # sweeps, as every init does
    authority = Authority.open(folder)
    if call == "finish":
        if authority.is_being_replaced:
            authority.finish_replacing("me")
        assert len(authority.trusted_authorities()) == 1
    elif call == "begin":
        with contextlib.suppress(Conflict):  # it was begun whole
            authority.begin_replacing()
        assert (len(authority.trusted_authorities()), authority.hosts_to_redeploy()) == (
            2,
            ("gpu01",),
        )
    elif call == "revoke":
        authority.revoke("gpu01")
        with pytest.raises(ConfigError, match="was revoked"):
            authority.agent_files("gpu01")
    elif call != "init":
        killed_at.CALLS[call](folder)


def test_many_threads_and_processes_issue_at_once_and_none_is_forgotten(
    authority: Authority,
) -> None:
    script = "import sys; from pathlib import Path; from fleet_controller.pki.authority import Authority\n"
    script += "a = Authority.open(Path(sys.argv[1]))\nfor n in range(10): a.issue_agent(f'{sys.argv[2]}-{n}')"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(authority.folder), f"p{number}"])
        for number in range(2)
    ]
    with ThreadPoolExecutor(8) as threads:
        issued = list(threads.map(lambda number: authority.issue_agent(f"t-{number}"), range(24)))
    assert [process.wait(60) for process in processes] == [0, 0]
    names = {entry.name for entry in authority.ledger().issued_to(Role.AGENT)}
    assert names == {f"t-{number}" for number in range(24)} | {
        f"p{process}-{number}" for process in range(2) for number in range(10)
    }
    assert len({one.key_pem for one in issued}) == 24


# Damage

KINDS = {
    "issued": [{"fingerprint": 1, "role": "king"}],
    "revoked": [{"fingerprint": 5, "name": 1, "role": 1, "revoked_unix_s": ""}],
}
DAMAGE: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello\n",
    "torn": b"-----BEGIN CERTIFICATE-----\nMIIBxTCCAWu",
    "not-pem": bytes(range(256)),
    "json": b'{"version": 9}',
    "list": b"[]",
    "deep": b"[" * 100_000,
    "null": b"null",
    "wrong": b'{"version": 1, "issued": [{}], "revoked": [{"fingerprint": "zz"}]}',
    "kinds": json.dumps({"version": 1, **KINDS}).encode(),
}
USES: dict[str, Callable[[Authority], object]] = {
    "ca.crt": lambda authority: Authority.open(authority.folder),
    "issued.json": lambda authority: Authority.open(authority.folder),
    "revoked.json": lambda authority: Authority.open(authority.folder),
    "ca.key": lambda authority: authority.issue_agent("gpu01"),
    "controller.crt": lambda authority: client_context(authority.controller_files()),
    "controller.key": lambda authority: client_context(authority.controller_files()),
    "user.crt": lambda authority: client_context(authority.user_files()),
    "agents/gpu01.crt": lambda authority: client_context(authority.agent_files("gpu01")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", USES)
def test_a_damaged_file_is_the_users_error_and_is_named(
    authority: Authority, name: str, damage: str
) -> None:
    authority.issue_agent("gpu01")
    (authority.folder / name).write_bytes(DAMAGE[damage])
    with pytest.raises(ConfigError) as raised:
        USES[name](authority)
    assert str(authority.folder / name) in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "controller.crt", "controller.key"])
def test_a_missing_file_is_named(authority: Authority, name: str) -> None:
    (authority.folder / name).unlink()
    with pytest.raises(ConfigError) as raised:
        USES[name](authority)
    assert str(authority.folder) in raised.value.message


def test_an_authoritys_key_that_others_may_read_is_refused(authority: Authority) -> None:
    (authority.folder / "ca.key").chmod(0o640)
    with pytest.raises(ConfigError, match="other users may read it") as raised:
        authority.issue_agent("gpu01")
    assert raised.value.hint == f"chmod 600 {authority.folder}/ca.key"


@pytest.mark.parametrize("host", ["", "../x", "a/b", ".hidden", "a b\n", "ü"])
def test_a_name_that_cannot_stand_in_a_certificate_is_refused(
    authority: Authority, host: str
) -> None:
    with pytest.raises(ConfigError):
        authority.issue_agent(host)
    assert authority.ledger().issued_to(Role.AGENT) == ()


def test_no_host_gets_the_name_of_another_as_an_address(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"names in \.benchfleet are reserved"):
        authority.issue_agent("gpu01", ["10.0.0.1", "gpu02.agent.benchfleet"])


# Revoking, renewing, replacing


def trusts(files: TlsFiles, pem: bytes) -> bool:
    """A client with these files accepts a server with this certificate (its chain alone)."""
    context = client_context(files)
    return pem.strip() in files.authorities.read_bytes() or any(
        ssl.DER_cert_to_PEM_cert(known).encode().strip() in pem
        for known in context.get_ca_certs(binary_form=True)
    )


def test_only_what_was_issued_to_a_host_passes_for_it_and_nothing_that_is_revoked(
    authority: Authority,
) -> None:
    first, other = authority.issue_agent("gpu01"), authority.issue_agent("gpu02")
    files = authority.agent_files("gpu01")
    assert (trusts(files, first.certificate_pem), trusts(files, other.certificate_pem)) == (
        True,
        False,
    )
    assert authority.revoke("gpu01", "stolen") == 1
    with pytest.raises(ConfigError, match="the certificate of host gpu01 was revoked"):
        authority.agent_files("gpu01")
    new = authority.issue_agent("gpu01")
    files = authority.agent_files("gpu01")
    assert (trusts(files, first.certificate_pem), trusts(files, new.certificate_pem)) == (
        False,
        True,
    )
    found = RevocationList(authority.controller_files().revoked).find(
        fingerprint(first.certificate_pem)
    )
    assert found is not None
    assert (found.name, found.reason) == ("gpu01", "stolen")


def test_until_a_new_certificate_was_seen_on_its_host_the_one_before_is_trusted_too(
    authority: Authority,
) -> None:
    old, new = (authority.issue_agent("gpu01").certificate_pem for _ in range(2))
    assert trusts(authority.agent_files("gpu01"), old)
    authority.mark_installed("gpu01", fingerprint(new))
    assert (
        trusts(authority.agent_files("gpu01"), old),
        trusts(authority.agent_files("gpu01"), new),
    ) == (False, True)
    with pytest.raises(NotFound):
        authority.mark_installed("gpu01", "00" * 32)


def test_any_number_of_deploys_that_fail_leave_what_the_host_has_trusted(
    authority: Authority,
) -> None:
    there = authority.issue_agent("gpu01").certificate_pem
    authority.mark_installed("gpu01", fingerprint(there))
    newest = [authority.issue_agent("gpu01").certificate_pem for _ in range(12)][-1]
    files = authority.agent_files("gpu01")
    assert (trusts(files, there), trusts(files, newest)) == (True, True)
    assert len(parse_certificates(files.authorities.read_bytes())) <= 4


def test_a_host_that_never_had_a_certificate_is_told_apart(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="no certificate was ever issued to host gpu09"):
        authority.agent_files("gpu09")
    with pytest.raises(NotFound, match="no certificate was issued to host gpu09"):
        authority.revoke("gpu09")
    with pytest.raises(NotFound):
        authority.request_renewal("gpu09")


def test_what_is_installed_is_kept_until_there_is_a_reason_to_replace_it(
    authority: Authority,
) -> None:
    now_s = time.time_ns() / 1e9
    mark = fingerprint(authority.issue_agent("gpu01").certificate_pem)
    assert authority.renewal_reason("gpu01", mark, now_s) == ""
    assert authority.renewal_reason("gpu01", "", now_s) == "it has none"
    assert (
        authority.renewal_reason("gpu02", mark, now_s)
        == "this authority did not issue the certificate to the host"
    )
    assert (
        authority.renewal_reason("gpu01", mark, now_s + 365 * 86400 - RENEW_BEFORE_S + 60)
        == "the certificate expires within 30 days"
    )
    authority.request_renewal("gpu01")
    assert authority.renewal_reason("gpu01", mark, now_s) == "a new certificate was requested"
    newer = fingerprint(authority.issue_agent("gpu01").certificate_pem)
    assert authority.renewal_reason("gpu01", newer, now_s) == ""
    authority.revoke("gpu01")
    assert authority.renewal_reason("gpu01", newer, now_s) == "it is revoked"


def test_an_authority_is_replaced_only_after_every_host_was_seen_with_the_new_one(
    authority: Authority,
) -> None:
    marks = {
        host: fingerprint(authority.issue_agent(host).certificate_pem)
        for host in ("gpu01", "gpu02", "gpu03")
    }
    before, controller = (
        authority.trusted_authorities()[0],
        authority.controller_files().certificate.read_bytes(),
    )
    authority.begin_replacing()
    assert authority.trusted_authorities()[1] == before
    assert (
        authority.controller_files().certificate.read_bytes() == controller
    )  # hosts that know only the old one still accept it
    assert authority.hosts_to_redeploy() == ("gpu01", "gpu02", "gpu03")
    assert (
        authority.renewal_reason("gpu01", marks["gpu01"], time.time_ns() / 1e9)
        == "the authority is being replaced"
    )
    for change in (
        authority.begin_replacing,
        authority.renew_controller,
        authority.revoke_controller,
    ):
        with pytest.raises(Conflict, match="is being replaced"):
            change()
    authority.mark_installed("gpu01", fingerprint(authority.issue_agent("gpu01").certificate_pem))
    authority.issue_agent("gpu02")  # issued, and its deploy never came to its end
    authority.revoke("gpu03")
    with pytest.raises(Conflict, match="gpu02") as raised:
        authority.finish_replacing("ann")
    assert "gpu01" not in raised.value.message + raised.value.hint
    authority.mark_installed("gpu02", fingerprint(authority.issue_agent("gpu02").certificate_pem))
    authority.finish_replacing("ann")
    assert before not in authority.trusted_authorities()
    assert is_whole(authority)
    with pytest.raises(Conflict, match="is not being replaced"):
        authority.finish_replacing("ann")


def test_a_revoked_controller_gets_a_new_pair_and_only_the_one_before_is_on_the_list(
    authority: Authority,
) -> None:
    old = fingerprint(authority.controller_files().certificate.read_bytes())
    assert authority.revoke_controller("stolen") == 1
    new = fingerprint(authority.controller_files().certificate.read_bytes())
    listed = RevocationList(authority.controller_files().revoked)
    assert (listed.find(old) is None, listed.find(new)) == (False, None)
    assert json.loads(authority.revoked_text())["revoked"][0]["reason"] == "stolen"


def test_all_that_end_are_told_the_next_first(authority: Authority) -> None:
    authority.issue_agent("gpu01")
    authority.issue_user("bob")
    parties = authority.expiring(time.time_ns() / 1e9)
    assert {(party.role, party.name) for party in parties} == {
        ("agent", "gpu01"), ("controller", "controller"), ("user", "ann"), ("user", "bob"), ("authority", ""),
    }  # fmt: skip
    assert [party.expires_unix_s for party in parties] == sorted(
        party.expires_unix_s for party in parties
    )
    authority.revoke_user("bob")
    assert ("user", "bob") not in {(party.role, party.name) for party in authority.expiring(0.0)}


def test_the_controller_warns_of_an_end_once_a_day_from_30_days_before(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.issue_agent("gpu01")
    collectors = CollectorRegistry()
    watch, now_s = ExpiryWatcher(authority, collectors), time.time_ns() / 1e9
    for days in (0.0, 334.0):
        watch.check_now(now_s + days * 86400)
    assert caplog.messages == []
    for hours in (0, 1, 23, 25, 48, 49.5):
        watch.check_now(now_s + 336 * 86400 + hours * 3600)
    told = [message for message in caplog.messages if "host gpu01" in message]
    assert len(told) == 3
    assert told[0].startswith("the certificate of host gpu01 expires in 28 days, on ")
    assert told[0].endswith("`fleetctl deploy gpu01` renews it")
    ends = {(entry.role, entry.name): entry.expires_unix_s for entry in authority.ledger().entries}
    name = "fleet_certificate_expires_timestamp_seconds"
    assert (
        collectors.get_sample_value(name, {"role": "agent", "host": "gpu01"})
        == ends[Role.AGENT, "gpu01"]
    )
    for number in range(50):
        authority.issue_user(f"user-{number}")
    watch.check_now(now_s)
    series = [
        sample
        for metric in collectors.collect()
        for sample in metric.samples
        if sample.name == name
    ]
    assert len(series) == 4  # users share one


def test_damage_while_the_controller_works_is_told_and_survived(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    watch = ExpiryWatcher(authority, CollectorRegistry())
    (authority.folder / "issued.json").write_text("{")
    watch.check_now(0.0)
    assert str(authority.folder / "issued.json") in caplog.messages[-1]
