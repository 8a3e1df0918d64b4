"""The agent's configuration file: read whole, every mistake with its line, words of the command
line over it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet_agent.app.config import AgentConfig, parse_config, read_config, resolve_config
from fleet_agent.core.admission.host_policy import ServerDefaults
from fleet_agent.main import build_parser
from fleet_protos.errors import ConfigError
from fleet_transport.tls_identity import TlsFiles

WHOLE = """\
host = "gpu01"
listen = "0.0.0.0:7433"
state = "/var/lib/benchfleet"
gpus = 8
metrics = "127.0.0.1:9464"
load_only = false

[labels]
gpu = "h200"

[tls]
authorities = "/etc/benchfleet/ca.crt"
certificate = "/etc/benchfleet/agent.crt"
key = "/etc/benchfleet/agent.key"
revoked = "/etc/benchfleet/revoked.json"

[allow]
python = ["/home/USER/ml-env/bin/python3"]
env = ["MY_*"]

[server]
python = "/home/USER/ml-env/bin/python3"
image = ""

[server.env]
NCCL_SOCKET_IFNAME = "eth0"
"""


def config_of(text: str) -> AgentConfig:
    return parse_config(text.encode(), "agent.toml")


def faults_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        config_of(text)
    return refused.value.message.split("\n")


def test_every_key_has_its_place() -> None:
    config = config_of(WHOLE)
    assert (config.host, config.listen, config.state, config.gpus) == (
        "gpu01",
        "0.0.0.0:7433",
        Path("/var/lib/benchfleet"),
        8,
    )
    assert (config.metrics, config.labels, config.simulated_gpus) == (
        "127.0.0.1:9464",
        {"gpu": "h200"},
        0,
    )
    names = ("ca.crt", "agent.crt", "agent.key", "revoked.json")
    assert config.tls == TlsFiles(*(Path("/etc/benchfleet") / name for name in names))
    assert (config.policy.is_open, config.policy.python, config.policy.env) == (
        False,
        ("/home/USER/ml-env/bin/python3",),
        ("MY_*",),
    )
    assert config.server == ServerDefaults(
        "/home/USER/ml-env/bin/python3", "", {"NCCL_SOCKET_IFNAME": "eth0"}
    )


def test_a_file_makes_the_agent_strict_and_none_leaves_it_open() -> None:
    assert config_of("").policy.is_open is False
    assert resolve_config(build_parser().parse_args(["--state", "x"])).policy.is_open is True


def test_every_mistake_is_told_at_once_with_its_line_and_what_to_do() -> None:
    top = 'listn = ""\nstate = "var"\ngpus = "8"\n[labels]\ngpu = 200\n[tls]\nkey = "k"\n'
    text = top + '[alow]\n[allow]\npython = "x"\n[server.env]\n"A-B" = ""\n'
    assert faults_of(text) == [
        "agent.toml:1: listn: unknown key: did you mean listen?",
        "agent.toml:2: state: var is not absolute: write the absolute path: the agent runs as a daemon, without a working folder",
        "agent.toml:3: gpus: the value must be a whole number: it is text in quotes",
        'agent.toml:5: labels.gpu: the value must be text in quotes: write gpu = "200"',
        'agent.toml:6: tls: authorities is missing: add authorities = "/PATH": TLS needs all of authorities, certificate and key',
        'agent.toml:6: tls: certificate is missing: add certificate = "/PATH": TLS needs all of authorities, certificate and key',
        "agent.toml:7: tls.key: k is not absolute: write the absolute path",
        "agent.toml:8: alow: unknown key: did you mean allow?",
        "agent.toml:10: allow.python: the value must be a list of texts: it is text in quotes",
        "agent.toml:12: server.env.A-B: this is not the name of an environment variable: use letters, digits and `_`",
    ]


WRONG = {
    'host = "a b"': "host", 'host = "../x"': "host", 'listen = "7433"': "listen", 'listen = "unix:x"': "listen", "gpus = -1": "gpus",
    "gpus = true": "gpus", "gpus = 8.0": "gpus", 'metrics = "x:99999"': "metrics", 'metrics = "::1:80"': "metrics",
    "load_only = 1": "load_only",
    "[allow]\nenv = [1]": "allow.env", '[allow]\nmodels = [""]': "allow.models", '[allow]\nmodels = ["a\\nb"]': "allow.models",
    '[server]\npython = "python3"': "server.python", '[server]\nenv = "x"': "server.env", "labels = 1": "labels", "x.y.z = 1": "x",
    '[server.env]\nA = "a\\u0000b"': "server.env.A", '[server.env]\nCUDA_VISIBLE_DEVICES = "0"': "server.env.CUDA_VISIBLE_DEVICES",
    '[server.env]\nBENCHFLEET_LAUNCH = "0"': "server.env.BENCHFLEET_LAUNCH", '[server]\npython = "/a"\nimage = "b"': "server.image",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_value_is_told_at_its_key(text: str) -> None:
    (fault,) = faults_of(text)
    line = text.count("\n") + 1
    assert fault.startswith(f"agent.toml:{line}: {WRONG[text]}: ")


NO_TOML = [
    ("host = \n", "line 1"),
    ("a = 1\na = 2\n", "line 2"),
    ("[x\n", "line 1"),
    ("a = [" * 3000, ""),
]


@pytest.mark.parametrize(("text", "line"), NO_TOML)
def test_what_is_no_toml_is_told_with_its_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError, match="is not valid TOML") as refused:
        config_of(text)
    assert line in refused.value.message


def test_words_of_the_command_line_win(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(WHOLE)
    file.chmod(0o600)
    words = (
        "--config",
        str(file),
        "--gpus",
        "2",
        "--host-name",
        "other",
        "--label",
        "rack=b",
        "--state",
        str(tmp_path),
    )
    config = resolve_config(build_parser().parse_args([*words, "--metrics-port", "9"]))
    assert (config.gpus, config.host, config.state, config.metrics) == (
        2,
        "other",
        tmp_path,
        "127.0.0.1:9",
    )
    assert (config.labels, config.listen) == ({"gpu": "h200", "rack": "b"}, "0.0.0.0:7433")


def test_without_a_state_folder_nothing_is_guessed() -> None:
    with pytest.raises(ConfigError, match="no state folder"):
        resolve_config(build_parser().parse_args([]))


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o622])
def test_a_file_that_others_may_change_says_nothing(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(WHOLE)
    file.chmod(mode)
    with pytest.raises(ConfigError, match="users other than root"):
        read_config(file)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "none")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    os.chmod(tmp_path / "x", 0o600)
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "x")
