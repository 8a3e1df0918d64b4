"""A job file that tries something in any of its texts: refused, or a word of a list that no shell
ever sees.
"""

from __future__ import annotations

import ast
import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.app.admission import Admission
from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang.launch import container_command
from fleet_agent.engines.sglang.launch.server_command import HostFacts, server_command
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.job_plan import make_plan, trial_specs
from fleet_controller.yaml.findings import JobRejected
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import TrialSpec

ROOT = Path(__file__).resolve().parents[2]
ON_HOST: dict[str, Any] = {
    "apiVersion": "benchfleet/v1",
    "kind": "Job",
    "name": "job",
    "model": {"path": "org/model"},
    "engine": {
        "kind": "sglang", "python": "/env/bin/python3", "entry": "launch_server", "cpu_binding": "none", "proof": "auto", "gpus": 1,
        "args": {"tp_size": 1, "served_model_name": "name", "lora_paths": ["a=org/lora"], "json_model_override_args": {"a": {"b": "c"}}},
        "env": {"NCCL_PROTO": "LL"}, "ready_timeout": "30m",
    },
    "factors": {"nccl": {"default": {}, "tuned": {"env": {"NCCL_ALGO": "Ring"}, "args": {"attention_backend": "fa3"}}}},
    "baseline": {"nccl": "default"},
    "workloads": {"single": {"concurrency": 1, "prompts": "builtin:chat", "output_tokens": 50}},
    "measure": {"launches": 1, "precision": "2%"},
    "hosts": {"names": ["here"], "labels": {}, "placement": "every_host"},
}  # fmt: skip
CONTAINED = copy.deepcopy(ON_HOST)
del CONTAINED["engine"]["python"]
CONTAINED["engine"]["container"] = {
    "image": "lmsysorg/sglang:v1", "runtime": "docker", "shm_size": "32g", "python": "python3", "mounts": {"/in": "/out:ro"},
}  # fmt: skip
EVERYWHERE = ["$(touch x)", "a\nb", "a\0b", "../../x", "--trust-remote-code", "-x", ""]
IN_TURN = [  # each place gets a third of them
    "; touch x", "`touch x`", "--privileged", "-v/:/h", "x" * 50_000, "\u202eexe", "a b", "'; x", '"; x', "a,b", "%h", "~/x", "/etc/passwd",
    "null", "{}", "=", "a=b", "\x1b[2J", "日本", "--", "@/etc/passwd", "secret://X", "secret://../x", "http://x", "${HOME}",
    "!!python/object/apply:os.system [x]",
]  # fmt: skip
Put = Callable[[Any, str], None]


def places(value: Any, path: str = "") -> Iterator[tuple[str, Put]]:
    """Each text of a document and each key of it: its name, and how to put another there."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield f"{path}.{key}{{key}}", lambda top, text, key=key: _rename(top, key, text)
            if isinstance(entry, str):
                yield f"{path}.{key}", lambda top, text, key=key: top.update({key: text})
            for name, put in places(entry, f"{path}.{key}"):
                yield name, lambda top, text, key=key, put=put: put(top[key], text)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, str):
                yield (
                    f"{path}[{index}]",
                    lambda top, text, index=index: top.__setitem__(index, text),
                )


def _rename(top: dict[str, Any], key: str, text: str) -> None:
    top[text] = top.pop(key)


WHOLES = {"host": ON_HOST, "container": CONTAINED}
PLACES = [
    (kind, name)
    for kind, whole in WHOLES.items()
    for name, _ in places(whole)
    if kind == "host" or ".container" in name
]
HOST = Admission("here")
FACTS = HostFacts(
    "/home/USER",
    {"PATH": "/bin"},
    runtime=container_command.ContainerRuntime("docker", "/usr/bin/docker"),
    has_hub=True,
)


def specs_of(document: dict[str, Any]) -> tuple[TrialSpec, ...]:
    """The trials that a host is sent. Raises JobRejected."""
    job = load_job(json.dumps(document, ensure_ascii=False), "job.yaml").job
    plan = make_plan(job, ["here"])
    return tuple(
        spec
        for planned in plan.trials
        for spec in trial_specs(job, plan, planned, f"{job.name}-0a1b2c")
    )


def command_of(spec: TrialSpec) -> LaunchCommand:
    """What the host would execute. Raises ConfigError."""
    return server_command(
        HOST.admit(spec),
        LaunchPlace(30000, (0,), Path("/state/t/1/server"), f"{spec.trial_id}/1"),
        FACTS,
    )


def options_of(document: dict[str, Any]) -> set[str]:
    return {
        word
        for spec in specs_of(document)
        for word in command_of(spec).argv
        if word.startswith("-")
    }


@pytest.mark.parametrize(("kind", "name"), PLACES, ids=lambda part: part)
def test_no_text_of_a_job_file_becomes_more_than_a_word(kind: str, name: str) -> None:
    usual = options_of(WHOLES[kind])
    for trick in (*EVERYWHERE, *IN_TURN[PLACES.index((kind, name)) % 3 :: 3]):
        document = copy.deepcopy(WHOLES[kind])
        dict(places(document))[name](document, trick)
        try:
            specs = specs_of(document)
        except JobRejected:
            continue
        for spec in specs:
            assert re.fullmatch(r"[A-Za-z0-9._-]+", spec.trial_id)
            try:
                command = command_of(spec)
            except ConfigError:
                continue
            _is_harmless(command, usual, name, trick)


def _is_harmless(command: LaunchCommand, usual: set[str], name: str, trick: str) -> None:
    assert command.argv[0] in (
        "/usr/bin/docker",
        "/env/bin/python3",
        trick,
        f"/home/USER{trick[1:]}",
    )
    words = (*command.argv, *command.env, *command.env.values())
    assert not any("\0" in word or ("\n" in word and "\n" not in trick) for word in words)
    added = {word for word in command.argv if word.startswith("-")} - usual
    is_argument = ".args." in name and name.endswith(
        "{key}"
    )  # an argument of another name is another option, of SGLang's
    assert is_argument or all(
        word.startswith("--") and "=" in word and word.partition("=")[0] in usual for word in added
    ), added


def test_the_tricks_reach_every_section() -> None:
    names = {name for _, name in PLACES}
    some = {
        ".name",
        ".model.path",
        ".engine.args.served_model_name",
        ".engine.env.NCCL_PROTO{key}",
        ".engine.container.mounts./in",
    }
    assert some <= names
    assert len(PLACES) > 75


BOMBS = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "merges": "a: &a {x: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [*a, *a, *a, *a]}}\n" for n in range(20_000)),
    "nesting": "[" * 100_000,
    "keys": "".join(f"k{n}: 1\n" for n in range(100_000)),
    "long": "name: " + "x" * 900_000,
    "large": "x" * (2 << 20),
    "tag": "name: !!python/object/apply:os.system [touch x]\n",
    "docs": "---\n" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_grows_without_end_is_refused_in_little_time(bomb: str) -> None:
    began_s = time.process_time()
    with pytest.raises(JobRejected):
        load_job(BOMBS[bomb], "job.yaml")
    assert time.process_time() - began_s < 15  # a second or two where nothing else runs


def test_the_page_about_security_names_tests_that_there_are() -> None:
    named = set(re.findall(r"tests/[a-z_/]+\.py", (ROOT / "docs" / "security.md").read_text()))
    assert len(named) > 15
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


# Nowhere a shell


FOLDERS = ("agent", "controller", "knowledge", "protos")
PRODUCT = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "_pb2" not in path.name
]
SHELLS = {"sh", "bash", "dash", "zsh", "/bin/sh", "/bin/bash", "/usr/bin/env"}
CALLS = {
    "system",
    "popen",
    "getoutput",
    "getstatusoutput",
    "create_subprocess_shell",
    "spawnlp",
    "execlp",
}
LOADERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def shells_in(tree: ast.AST) -> Iterator[str]:
    """What could start a shell, or make objects of data."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "shell"
            and not (isinstance(node.value, ast.Constant) and not node.value.value)
        ):
            yield f"line {node.value.lineno}: shell="
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CALLS
        ):
            yield f"line {node.lineno}: {node.func.attr}"
        elif isinstance(node, ast.List | ast.Tuple) and _is_shell_command(node.elts):
            yield f"line {node.lineno}: a shell's -c"
        elif isinstance(node, ast.Import | ast.ImportFrom) and {*_modules(node)} & LOADERS:
            yield f"line {node.lineno}: {', '.join({*_modules(node)} & LOADERS)}"


def _is_shell_command(words: list[ast.expr]) -> bool:
    texts = [word.value if isinstance(word, ast.Constant) else "" for word in words]
    return (
        len(texts) > 1
        and texts[0] in SHELLS
        and str(texts[1]).startswith("-")
        and "c" in str(texts[1])
    )


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return (
        [alias.name for alias in node.names]
        if isinstance(node, ast.Import)
        else [node.module or ""]
    )


def test_no_shell_is_started_anywhere_and_no_object_is_made_of_data() -> None:
    found = [
        f"{path.relative_to(ROOT)} {what}"
        for path in PRODUCT
        for what in shells_in(ast.parse(path.read_text()))
    ]
    assert (len(PRODUCT) > 300, found) == (True, [])


STARTS = [
    "run(x, shell=True)",
    "os.system('x')",
    "run(['sh', '-c', x])",
    "run(('bash', '-lc', x))",
    "import pickle",
]


@pytest.mark.parametrize("text", STARTS)
def test_the_search_for_shells_finds_one(text: str) -> None:
    assert len(list(shells_in(ast.parse(text)))) == 1
