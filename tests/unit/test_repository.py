"""What the repository promises about itself: documents, examples, pins and packages agree with the
code.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from fleet_controller.cli.argument_parser import COMMANDS
from fleet_protos import metric_names
from tools import sizes, structure

ROOT = Path(__file__).resolve().parents[2]
SIMULATOR = "simulator/fleet_simulator"
PACKAGES = (
    "agent/fleet_agent", "controller/fleet_controller", "knowledge/fleet_knowledge", "protos/fleet_protos", "protos/fleet_transport",
)  # fmt: skip
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
ARCHITECTURE = ROOT / "docs/ARCHITECTURE.md"
GUIDES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "--", *patterns]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def fleetctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleet_controller.cli.main", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def program(name: str) -> str | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return shutil.which(name) or shutil.which(name, path=cache / "benchfleet/programs/usr/bin")


def words_after(command: str, guide: Path) -> Iterator[str]:
    """The first argument of each call of `command` in the code of a Markdown file: indented lines,
    fenced lines, spans.
    """
    text = guide.read_text()
    for code in (
        *re.findall(r"^```.*?^```", text, re.S | re.M),
        *re.findall(r"^ {4}\S.*$", text, re.M),
        *re.findall(r"`([^`\n]+)`", text),
    ):
        yield from re.findall(rf"\b{command} ([a-z][a-z-]*)\b", code)


def test_there_are_examples_to_check() -> None:
    assert {file.name for file in EXAMPLES} >= {
        "demo.yaml",
        "kimi-eagle3-nccl.yaml",
        "sglang-cpu.yaml",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.name)
def test_each_example_lints_without_errors_and_warnings(example: Path) -> None:
    done = fleetctl("lint", str(example), "--json")
    serious = [
        finding for finding in json.loads(done.stdout)["findings"] if finding["severity"] != "info"
    ]
    assert (done.returncode, serious) == (0, [])


@pytest.mark.parametrize("kind", ["Job", "Fleet"])
def test_the_files_in_the_readme_lint_without_errors_and_warnings(
    kind: str, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    [block] = [block for block in blocks if f"kind: {kind}\n" in block]
    (tmp_path / "file.yaml").write_text(block)
    done = fleetctl("lint", str(tmp_path / "file.yaml"), "--json")
    serious = [
        finding for finding in json.loads(done.stdout)["findings"] if finding["severity"] != "info"
    ]
    assert (done.returncode, serious) == (0, [])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.name)
def test_each_example_names_a_schema_that_is_there(example: Path) -> None:
    named = re.match(r"# yaml-language-server: \$schema=(\S+)$", example.read_text().split("\n")[0])
    assert named and (example.parent / named[1]).is_file()


def test_the_committed_schema_is_the_one_of_the_code() -> None:
    [committed] = [ROOT / name for name in tracked("docs/schema/job*.json")]
    assert json.loads(committed.read_text()) == json.loads(fleetctl("schema", "job").stdout)


def test_each_command_in_the_guides_exists() -> None:
    commands = {name for name, *_ in COMMANDS}
    named = {(guide.name, word) for guide in GUIDES for word in words_after("fleetctl", guide)}
    assert "README.md" in {guide for guide, _ in named}
    assert {(guide, word) for guide, word in named if word not in commands} == set()


def test_each_make_target_in_the_guides_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for guide in GUIDES for word in words_after("make", guide)}
    assert {"demo", "test"} <= named <= targets


def test_each_link_in_the_guides_leads_somewhere() -> None:
    links = [
        (guide, link)
        for guide in GUIDES
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", guide.read_text())
    ]
    assert links
    assert [
        f"{guide.name}: {link}" for guide, link in links if not (guide.parent / link).exists()
    ] == []


def gate_codes(source: str, module: Mapping[str, object]) -> Iterator[str]:
    """The first argument of each `Gate(...)` of a module, where it is a text or the name of one."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Gate"
            and node.args
        ):
            code = node.args[0]
            value = (
                code.value
                if isinstance(code, ast.Constant)
                else module.get(code.id)
                if isinstance(code, ast.Name)
                else None
            )
            if isinstance(value, str):
                yield value


def test_each_gate_of_the_code_is_documented() -> None:
    modules = [name.removeprefix("agent/").removesuffix(".py") for name in tracked("agent/*.py")]
    sources = {name.replace("/", "."): (ROOT / f"agent/{name}.py").read_text() for name in modules}
    codes = {
        code for name, text in sources.items() if " Gate(" in text or "(Gate(" in text
        for code in gate_codes(text, vars(importlib.import_module(name)))
    }  # fmt: skip
    assert {"client_limited", "args_changed_by_server"} <= codes
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/gates.md").read_text()))
    assert codes - documented == set()


def test_the_architecture_shows_the_folders_that_there_are() -> None:
    expected = "\n".join(structure.tree(structure.product(ROOT)))
    block = re.search(r"^```text\n(.*?)\n```$", ARCHITECTURE.read_text(), re.S | re.M)
    assert block and block[1] == expected, "paste: python -m tools.structure --tree"


def test_each_module_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", ARCHITECTURE.read_text()))
    known = tracked("*.py")
    assert len(named) > 10
    assert {
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in known)
    } == set()


def test_folders_are_small_and_one_way_and_the_text_is_plain() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.structure"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout


def test_the_changelog_has_an_unreleased_section_with_something_in_it() -> None:
    assert re.search(r"^## Unreleased\n+- \S", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_no_tracked_file_names_a_path_of_this_machine() -> None:
    ours = [
        f"{path}/" for path in (ROOT, Path.home()) if len(path.parts) > 1 and path != Path("/root")
    ]
    nobody = r"(?:USER|me|bench)\b"  # names of examples and of the lab
    personal = re.compile(
        "|".join(
            [
                *map(re.escape, ours),
                rf"(?<![\w.])/home/(?!{nobody})\w+/",
                r"(?<![\w.])/root/\.(?:pyenv|cache)",
            ]
        )
    )
    assert personal.search(f"python = {ROOT}/.venv/bin/python")
    texts = (
        (name, (ROOT / name).read_text(errors="replace"))
        for name in tracked()
        if (ROOT / name).is_file()
    )
    assert [
        name
        for name, text in texts
        if name != "tests/unit/test_repository.py" and personal.search(text)
    ] == []


def test_requirements_name_no_registry_and_hash_every_package() -> None:
    for file in (ROOT / "requirements").glob("*.txt"):
        if file.name != "apt.txt":
            text = file.read_text()
            assert not re.search(r"https?://|^-|find-links|index-url", text, re.M)
            assert [
                entry for entry in re.split(r"\n(?=\S)", text) if "--hash=sha256:" not in entry
            ] == []


@pytest.mark.parametrize(
    ("pins", "extras"),
    [("run.txt", ("agent", "controller")), ("dev.txt", ("agent", "controller", "dev"))],
)
def test_pins_satisfy_pyproject(pins: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / "requirements" / pins).read_text(), re.M)
    pinned = {canonicalize_name(name): Version(version) for name, version in found}
    texts = sum(
        (project["optional-dependencies"][extra] for extra in extras), project["dependencies"]
    )
    ours = ("benchfleet", "benchfleet-simulator")
    wanted = [need for need in map(Requirement, texts) if need.name not in ours]
    unmet = [
        str(need)
        for need in wanted
        if pinned.get(canonicalize_name(need.name), Version("0")) not in need.specifier
    ]
    assert unmet == [], "run: make lock"


def test_sizes_are_within_their_limits() -> None:
    assert sizes.findings(ROOT, sizes.tracked_python(ROOT)) == []


def test_the_size_check_tells_long_files_and_functions(tmp_path: Path) -> None:
    body = "    x = 1\n" * sizes.FUNCTION_LINES
    (tmp_path / "long.py").write_text(f"def endless():\n{body}" + "y = 2\n" * sizes.FILE_LINES)
    told = sizes.findings(tmp_path, [tmp_path / "long.py"])
    assert [line.split(":")[0] for line in told[:2]] == ["long.py", "long.py"]
    assert "endless has 61 lines" in told[1]


@pytest.mark.parametrize(
    ("folder", "packages"), [(ROOT, PACKAGES), (ROOT / "simulator", (SIMULATOR,))]
)
def test_each_wheel_holds_every_file_of_its_packages_and_nothing_else(
    tmp_path: Path, folder: Path, packages: tuple[str, ...]
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {name.split("/", 1)[1] for name in tracked(*packages)}
    assert expected - inside == set()
    assert {name.split("/")[0] for name in inside} == {
        package.split("/")[1] for package in packages
    }


def test_both_projects_have_one_version() -> None:
    main, simulator = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT, ROOT / "simulator")
    )
    assert simulator["version"] == main["version"]
    assert main["optional-dependencies"]["simulator"] == [
        f"{simulator['name']}=={simulator['version']}"
    ]


def test_alert_rules_name_only_series_that_are_exported() -> None:
    exported = {value for name, value in vars(metric_names).items() if name.startswith("PROM_")}
    used = set(
        re.findall(
            r"\bfleet_[a-z_]+\b",
            "".join(re.findall(r"expr: (.+)", (ROOT / "deploy/prometheus-rules.yml").read_text())),
        )
    )
    assert used and used <= exported


@pytest.mark.skipif(
    not program("promtool") and not os.environ.get("CI"),
    reason="promtool is not there; make test gets it where apt is",
)
@pytest.mark.parametrize(
    "check",
    [["check", "config", "prometheus.yml"], ["test", "rules", "prometheus-rules.test.yml"]],
    ids=" ".join,
)
def test_prometheus_takes_the_configuration_and_the_alerts_fire(check: list[str]) -> None:
    promtool = program("promtool")
    assert promtool, "promtool is missing: tools/test_programs.sh"
    done = subprocess.run(
        [promtool, *check],
        cwd=ROOT / "deploy",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
