"""Promises of secrets: only a private file holds them, only the started process gets them, and
nothing that is kept shows them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.core.engine import LaunchCommand
from fleet_agent.server.launch_setup import prepare_command
from fleet_agent.storage.secrets import Secrets, read_secrets, secret_names, secrets_file
from fleet_protos.errors import ConfigError, ErrorKind
from fleet_protos.events import ConfigurationProved, ServerFailed
from fleet_protos.trial_types import Gate, GateEffect

VALUE = 'hf_Ab"c\\d&e f%'


def secrets_at(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secrets"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_the_file_is_the_one_named_else_that_of_the_configuration_folder() -> None:
    assert secrets_file({"BENCHFLEET_SECRETS": "/x/y", "HOME": "/h"}) == Path("/x/y")
    assert secrets_file({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/benchfleet/secrets")
    assert secrets_file({"HOME": "/h"}) == Path("/h/.config/benchfleet/secrets")


def test_a_reference_becomes_its_value_and_all_else_stays(tmp_path: Path) -> None:
    path = secrets_at(tmp_path, f"# tokens\n\nhf={VALUE}\r\nother=12345678=9\n")
    env = {"HF_TOKEN": "secret://hf", "AGAIN": "secret://hf", "PLAIN": "hf", "B": "secret://other"}
    secrets = read_secrets(secret_names(env), path)
    assert secrets.fill(env) == {
        "HF_TOKEN": VALUE,
        "AGAIN": VALUE,
        "PLAIN": "hf",
        "B": "12345678=9",
    }


def test_without_references_no_file_is_needed(tmp_path: Path) -> None:
    assert not read_secrets(secret_names({"A": "b"}), tmp_path / "nothing")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_file_that_others_may_read_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, mode: int
) -> None:
    path = secrets_at(tmp_path, f"hf={VALUE}\n", mode)
    with pytest.raises(ConfigError, match=f"{path} has mode {mode:04o}") as refused:
        read_secrets(["hf"], path)
    assert refused.value.hint == f"chmod 600 {path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = secrets_at(tmp_path, f"hf={VALUE}\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534") as refused:
        read_secrets(["hf"], path)
    assert refused.value.hint.startswith("chown ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("other=12345678\n", "has no secret hf"),
        ("hf=1234567\n", "fewer than 8 characters"),
        (f"hf={VALUE}\nhf={VALUE}\n", "twice"),
        ("export hf=12345678\n", "line 1: the line is not NAME=value"),
    ],
)
def test_a_secret_that_cannot_be_had_is_told_by_file_and_never_by_value(
    tmp_path: Path, text: str, told: str
) -> None:
    path = secrets_at(tmp_path, text)
    with pytest.raises(ConfigError, match=told) as refused:
        read_secrets(["hf"], path)
    assert str(path) in refused.value.message
    assert VALUE not in f"{refused.value.message} {refused.value.hint}"
    assert "1234567" not in f"{refused.value.message} {refused.value.hint}"


def test_a_file_that_is_not_there_or_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist on this host"):
        read_secrets(["hf"], tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"cannot be read|is not a regular file"):
        read_secrets(["hf"], tmp_path)


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE,
        json.dumps(VALUE),
        repr(VALUE),
        "x%22hf_Ab%22c%5Cd%26e%20f%25"[4:],
        "hf_Ab%22c%5Cd%26e+f%25",
    ],
)
def test_every_way_a_program_prints_a_secret_is_masked(spelled: str) -> None:
    masked = Secrets({"hf": VALUE}).mask(f"before {spelled} after")
    assert "hf_Ab" not in masked
    assert "secret://hf" in masked and masked.startswith("before") and masked.endswith("after")


def test_whatever_an_event_holds_is_masked_and_the_rest_is_whole() -> None:
    secrets = Secrets({"hf": VALUE, "long": f"{VALUE}-longer"})
    failed = ServerFailed(
        ErrorKind.SERVER_EXITED,
        "unknown",
        f"said {VALUE}",
        3,
        f"tail {VALUE}-longer",
        f"cause {VALUE}",
        "TP1",
        VALUE,
    )
    assert secrets.mask(failed) == ServerFailed(
        ErrorKind.SERVER_EXITED,
        "unknown",
        "said secret://hf",
        3,
        "tail secret://long",
        "cause secret://hf",
        "TP1",
        "secret://hf",
    )
    proved = ConfigurationProved(
        {"a": [VALUE, {"b": VALUE}], "n": 3},
        env={"T": VALUE},
        gates=(Gate("c", GateEffect.FLAG, VALUE),),
    )
    masked = secrets.mask(proved)
    assert masked.effective_args == {"a": ["secret://hf", {"b": "secret://hf"}], "n": 3}
    assert (masked.env, masked.gates) == (
        {"T": "secret://hf"},
        (Gate("c", GateEffect.FLAG, "secret://hf"),),
    )


def test_secrets_do_not_show_themselves() -> None:
    assert "hf_" not in f"{Secrets({'hf': VALUE})!r} {Secrets({'hf': VALUE})}"


@given(
    st.lists(
        st.sampled_from(["secretvalue", "s", "ecretvalue", "\n", "x" * 70000, "secretvalu"]),
        max_size=60,
    ),
    st.integers(0, 70000),
)
def test_a_file_is_masked_wherever_in_it_the_secret_stands(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], shift: int
) -> None:
    path = tmp_path_factory.mktemp("mask") / "server.log"
    content = "y" * shift + "".join(parts)
    path.write_text(content)
    found = Secrets({"n": "secretvalue"}).mask_file(path)
    assert found == ("secretvalue" in content)
    assert path.read_text() == content.replace("secretvalue", "secret://n")


@given(
    st.lists(st.sampled_from(["secretvalue", "secret", "value", "\n", "x" * 100]), max_size=30),
    st.integers(0, 40),
)
def test_where_no_second_file_can_be_written_a_secret_is_painted_over_where_it_stands(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], shift: int
) -> None:
    path = tmp_path_factory.mktemp("masked") / "server.log"
    content = "." * ((1 << 20) - shift) + "".join(parts)
    path.write_text(content)
    (path.parent / "server.log.masked").mkdir()
    assert Secrets({"n": "secretvalue"}).mask_file(path) is ("secretvalue" in content)
    assert path.read_text() == content.replace("secretvalue", "***********")
    assert [other.name for other in path.parent.iterdir() if other.is_file()] == ["server.log"]


def test_a_masked_file_keeps_to_its_owner_and_a_clean_one_is_not_touched(tmp_path: Path) -> None:
    dirty, clean = tmp_path / "a.log", tmp_path / "b.log"
    dirty.write_text(f"x {VALUE}")
    clean.write_text("x")
    before = clean.stat().st_ino
    Secrets({"hf": VALUE}).mask_folder(tmp_path)
    assert (dirty.read_text(), dirty.stat().st_mode & 0o777) == ("x secret://hf", 0o600)
    assert clean.stat().st_ino == before


def test_the_process_gets_the_value_and_the_record_the_reference() -> None:
    command = LaunchCommand(("true",), {"T": "secret://hf"}, "/")
    assert prepare_command(command, Secrets({"hf": VALUE})).env == {"T": VALUE}
    assert command.env == {"T": "secret://hf"}


def test_a_containers_variables_are_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "container.env"
    command = LaunchCommand(
        ("docker",), {"T": "secret://hf", "A": "b=c"}, "/", str(file), {"PATH": "/bin"}
    )
    started = prepare_command(command, Secrets({"hf": VALUE}))
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"T={VALUE}\nA=b=c\n", 0o600)
    assert started.env == {"PATH": "/bin"}
    assert VALUE not in repr(started)
