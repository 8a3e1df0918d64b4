"""Promises of `init --from-command` and of `lint` on a pasted launch, through the real program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "user" / "fleetctl.md"
LAUNCH = "export HF_TOKEN=hf_ABCDEFGHIJK\nexport NCCL_ALGO=Ring\npython3 -m sglang.launch_server --model-path org/m --tp 2\n"
UNFILLED = "python3 -m sglang.launch_server --model-path org/m --tp $TP\n"
BROKEN = "python3 -m sglang.launch_server --model-path org/m \\ # here\n  --tp 8\n"


def fleetctl(*arguments: str, state: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(state),
        "BENCHFLEET_STATE": str(state / "state"),
    }
    command = (sys.executable, "-m", "fleet_controller.cli.main", *arguments)
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def test_job_of_a_pasted_launch_lints_clean_and_can_be_planned(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(LAUNCH)
    job = str(tmp_path / "job.yaml")
    done = fleetctl(
        "init", "--from-command", str(tmp_path / "launch.sh"), "-o", job, state=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert f"wrote {job}" in done.stderr
    assert fleetctl("lint", job, state=tmp_path).returncode == 0
    plan = json.loads(fleetctl("plan", job, "--json", state=tmp_path).stdout)
    assert [variant["name"] for variant in plan["variants"]] == ["nccl=default", "nccl=as-given"]


def test_job_goes_to_standard_output_and_findings_to_standard_error(tmp_path: Path) -> None:
    done = fleetctl("init", "--from-command", "-", state=tmp_path, stdin=LAUNCH)
    assert done.returncode == 0
    assert done.stdout.startswith("# Made by")
    assert "-:1:1: info secret" in done.stderr
    assert "hf_ABCDEFGHIJK" not in done.stdout + done.stderr


def test_a_job_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    words = ("init", "--from-command", "-", "-o", str(tmp_path / "job.yaml"))
    assert fleetctl(*words, state=tmp_path, stdin=LAUNCH).returncode == 2
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert fleetctl(*words, "--force", state=tmp_path, stdin=LAUNCH).returncode == 0


def test_what_has_no_value_is_refused_until_it_is_filled_in(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    assert (
        fleetctl(
            "init", "--from-command", "-", "-o", str(job), state=tmp_path, stdin=UNFILLED
        ).returncode
        == 2
    )
    assert fleetctl("lint", str(job), state=tmp_path).returncode == 2
    job.write_text(re.sub(r'"\$TP" # fill in.*', "2", job.read_text()))
    assert fleetctl("lint", str(job), state=tmp_path).returncode == 0


def test_no_job_is_made_of_a_command_that_ends_too_early(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    done = fleetctl(
        "init", "--from-command", "-", "-o", str(job), "--json", state=tmp_path, stdin=BROKEN
    )
    result = json.loads(done.stdout)
    assert (done.returncode, result["verdict"], result["job_file"], job.exists()) == (
        2,
        "error",
        "",
        False,
    )
    assert [(finding["line"], finding["code"]) for finding in result["findings"]] == [
        (1, "text_after_continuation")
    ]


def test_lint_reads_a_pasted_launch_with_its_own_lines(tmp_path: Path) -> None:
    file = tmp_path / "launch.sh"
    file.write_text(LAUNCH.replace("--tp 2", "--tp 2 \\\n  --no-such-option 1"))
    done = fleetctl("lint", str(file), "--json", state=tmp_path)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 0
    assert [finding["line"] for finding in findings if finding["code"] == "unknown_argument"] == [4]
    file.write_text(UNFILLED)
    assert fleetctl("lint", str(file), state=tmp_path).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--from-command", "no-such.sh"),
        ("-o", "x.yaml"),
        ("--from-command", "-", "-o", "no/such/x.yaml"),
    ],
)
def test_mistake_on_the_command_line_is_told_without_a_traceback(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = fleetctl("init", *words, state=tmp_path, stdin=LAUNCH)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_guide_explains_every_code_and_no_other() -> None:
    section = GUIDE.read_text(encoding="utf-8").split("## Start from a launch")[1].split("\n## ")[0]
    sources = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "controller/fleet_controller/importers").rglob("*.py")
    )
    told = set(re.findall(r'(?:notes\.(?:error|warn|info)|\btell)\(\s*"([a-z_]+)"', sources))
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)) == told
