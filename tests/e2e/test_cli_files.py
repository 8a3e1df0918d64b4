"""Promises of the commands that need no controller, through the real program."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

FLEETCTL = (sys.executable, "-m", "fleet_controller.cli.main")
CSV = "variant,launch,value\ntuned,1,88.8\n" + "".join(
    f"eagle3,{n},{v}\n" for n, v in enumerate((81.0, 83.6, 82.8, 92.0, 94.0), start=1)
)
SLOWER = "variant,launch,value\n" + "".join(
    f"a,{n},{100 + n}\nb,{n},{80 + n}\n" for n in range(1, 5)
)


def fleetctl(
    *arguments: str, state: Path, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(state),
        "BENCHFLEET_STATE": str(state / "state"),
        **env,
    }
    return subprocess.run(
        (*FLEETCTL, *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def on_terminal(columns: int, *arguments: str, **env: str) -> str:
    """What the command writes to a terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm", "LC_ALL": "C.UTF-8", **env}
    process = subprocess.Popen(
        (*FLEETCTL, *arguments), stdout=follower, stderr=follower, stdin=follower, env=environment
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the terminal is gone when the process has ended
            break
        if not part:
            break
        written += part
    os.close(leader)
    process.wait(timeout=60)
    return written.decode().replace("\r\n", "\n")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    file = tmp_path / "numbers.csv"
    file.write_text(CSV)
    return file


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["version"]])
def test_help_loads_nothing_that_takes_time(words: list[str]) -> None:
    program = (
        "import sys; from fleet_controller.cli.main import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(told.stdout.rpartition("LOADED")[2].split())
    assert "argparse" in loaded
    assert (
        loaded
        & {
            "alembic",
            "google",
            "grpc",
            "numpy",
            "pydantic",
            "ray",
            "rich",
            "ruamel",
            "scipy",
            "sqlalchemy",
        }
        == set()
    )


def test_published_numbers_give_their_table(tmp_path: Path, numbers: Path) -> None:
    done = fleetctl("compare", "--csv", str(numbers), state=tmp_path)
    assert done.returncode == 0
    for text in ("86.7 tok/s", "79.4 … 94.0", "−2.4 % throughput", "INCONCLUSIVE", "±2 %"):
        assert text in done.stdout


def test_json_of_a_comparison_is_all_of_standard_output(tmp_path: Path, numbers: Path) -> None:
    result = json.loads(fleetctl("compare", "--csv", str(numbers), "--json", state=tmp_path).stdout)
    eagle3 = result["rows"][1]
    assert (result["baseline"], eagle3["variant"], eagle3["launches"], eagle3["verdict"]) == (
        "tuned",
        "eagle3",
        5,
        "INCONCLUSIVE",
    )
    assert [round(end, 1) for end in eagle3["interval"]] == [79.4, 94.0]
    assert 40 <= eagle3["needs"]["launches"] <= 48


def test_numbers_come_from_standard_input_too(tmp_path: Path) -> None:
    assert "86.7 tok/s" in fleetctl("compare", "--csv", "-", state=tmp_path, stdin=CSV).stdout


@pytest.mark.parametrize("columns", [40, 80, 130, 200])
def test_terminal_never_cuts_a_number(numbers: Path, columns: int) -> None:
    shown = on_terminal(columns, "compare", "--csv", str(numbers))
    plain = re.sub(r"\033\[[0-9;]*m", "", shown)
    assert "…\n" not in plain
    for text in ("88.8 tok/s", "86.7 tok/s", "79.4 … 94.0", "−2.4 % throughput", "INCONCLUSIVE"):
        assert text in plain


def test_colours_are_on_terminals_only_and_no_color_turns_them_off(
    tmp_path: Path, numbers: Path
) -> None:
    assert "\033[" in on_terminal(200, "compare", "--csv", str(numbers))
    assert "\033[" not in on_terminal(200, "compare", "--csv", str(numbers), NO_COLOR="1")
    assert "\033[" not in fleetctl("compare", "--csv", str(numbers), state=tmp_path).stdout


def test_slower_fails_a_pipeline_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "slower.csv"
    file.write_text(SLOWER)
    assert fleetctl("compare", "--csv", str(file), state=tmp_path).returncode == 0
    assert (
        fleetctl("compare", "--csv", str(file), "--fail-on", "slower", state=tmp_path).returncode
        == 1
    )
    assert (
        fleetctl(
            "compare", "--csv", str(file), "--baseline", "b", "--fail-on", "slower", state=tmp_path
        ).returncode
        == 0
    )


def test_bad_rows_are_all_told_with_their_lines(tmp_path: Path) -> None:
    done = fleetctl(
        "compare",
        "--csv",
        "-",
        state=tmp_path,
        stdin="variant,launch,value\na,1,fast\na,2,3\na,3\n",
    )
    assert done.returncode == 2
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == ["-:2:3", "-:4:1"]
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare",), ("compare", "a", "--csv", "x.csv"), ("compare", "--csv", "no-such.csv"), ("compare", "--csv", "."),
        ("compare", "--csv", "-", "--confidence", "0%"), ("compare", "--csv", "-", "--baseline", "zz"), ("lint", "no-such.yaml"),
        ("schema", "fleets"), ("no-such-command",), (), ("compare", "--csv", "-", "--margin", "2"),
    ],
)  # fmt: skip
def test_mistake_on_the_command_line_is_told_without_a_traceback(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = fleetctl(*arguments, state=tmp_path, stdin=CSV)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_reader_that_goes_away_is_no_error(numbers: Path, tmp_path: Path) -> None:
    command = " ".join((*FLEETCTL, "schema", "job", "| true"))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_init_writes_files_that_lint_without_errors_and_warnings_and_never_overwrites(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new"
    assert fleetctl("init", str(folder), state=tmp_path).returncode == 0
    linted = fleetctl("lint", str(folder / "job.yaml"), "--json", state=tmp_path)
    assert linted.returncode == 0
    assert [
        finding["code"]
        for finding in json.loads(linted.stdout)["findings"]
        if finding["severity"] != "info"
    ] == []
    (folder / "job.yaml").write_text("mine")
    refused = fleetctl("init", str(folder), state=tmp_path)
    assert refused.returncode == 2
    assert "job.yaml" in refused.stderr
    assert (folder / "job.yaml").read_text() == "mine"
    assert fleetctl("init", str(folder), "--force", state=tmp_path).returncode == 0
    assert (folder / "job.yaml").read_text() != "mine"


def test_init_on_a_laptop_makes_no_fleet_and_plan_is_for_this_machine(tmp_path: Path) -> None:
    made = fleetctl("init", str(tmp_path), state=tmp_path)
    assert (made.returncode, made.stdout) == (0, f"wrote {tmp_path / 'job.yaml'}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml"}  # no fleet file, no authority
    again = fleetctl("init", str(tmp_path), state=tmp_path)
    assert again.returncode == 2 and "job.yaml exists already and was kept" in again.stderr
    fleet = fleetctl("init", str(tmp_path), "--fleet", state=tmp_path)
    assert fleet.returncode == 0, fleet.stderr
    assert "created the fleet's authority" in fleet.stderr and "kept" in fleet.stderr
    refused = fleetctl("init", str(tmp_path), "--fleet", state=tmp_path)
    assert refused.returncode == 2 and "fleet.yaml exists already and was kept" in refused.stderr
    assert "nothing was written" not in again.stderr + refused.stderr
    planned = fleetctl(
        *("plan", str(tmp_path / "job.yaml"), "--fleet", str(tmp_path / "fleet.yaml")),
        *("--local", "--json"),
        state=tmp_path,
    )
    assert json.loads(planned.stdout)["hosts"] == [socket.gethostname()]


@pytest.mark.parametrize("command", ["submit", "hosts"])
def test_a_command_that_needs_a_controller_says_that_none_runs(
    tmp_path: Path, command: str
) -> None:
    fleetctl("init", str(tmp_path), state=tmp_path)
    words = [str(tmp_path / "job.yaml")] if command == "submit" else []
    told = fleetctl(command, *words, state=tmp_path)
    assert told.returncode == 3
    assert "error: no controller is running in the state folder" in told.stderr
    elsewhere = fleetctl(command, *words, "--controller", f"unix:{tmp_path}/no", state=tmp_path)
    assert elsewhere.returncode == 3
    assert "does not answer: nothing listens there\n" in elsewhere.stderr


def test_lint_tells_findings_in_the_form_of_the_contract(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    fleetctl("init", str(tmp_path), state=tmp_path)
    file.write_text(file.read_text().replace("workloads:", "worklods:"))
    done = fleetctl("lint", str(file), "--json", state=tmp_path)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 2
    assert all(
        list(finding) == ["code", "severity", "file", "line", "column", "key", "message", "hint"]
        for finding in findings
    )
    assert any(finding["severity"] == "error" and finding["line"] > 1 for finding in findings)
    told = fleetctl("lint", str(file), state=tmp_path)
    assert told.stdout.startswith(f"{file}:")
    assert "worklods" in told.stdout


def test_plan_shows_each_launch_and_starts_nothing(tmp_path: Path) -> None:
    fleetctl("init", str(tmp_path), state=tmp_path)
    done = fleetctl("plan", str(tmp_path / "job.yaml"), "--json", state=tmp_path)
    plan = json.loads(done.stdout)
    assert done.returncode == 0
    assert len(plan["trials"]) == len(plan["variants"]) * plan["blocks"]
    assert plan["estimate"]["minutes"] > 0
    assert not (tmp_path / "state" / "controller").exists()
    assert "estimated:" in fleetctl("plan", str(tmp_path / "job.yaml"), state=tmp_path).stdout


def test_schema_is_json_schema(tmp_path: Path) -> None:
    schema = json.loads(fleetctl("schema", "job", state=tmp_path).stdout)
    assert schema["type"] == "object"
    assert "workloads" in schema["properties"]


def test_no_controller_is_told_with_what_to_do(tmp_path: Path) -> None:
    done = fleetctl("show", "x", "--controller", f"unix:{tmp_path}/none.sock", state=tmp_path)
    assert done.returncode == 3
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_is_closed_or_full_is_no_bug_of_ours(numbers: Path, tmp_path: Path) -> None:
    words = [*FLEETCTL, "compare", "--csv", str(numbers)]
    env = {"PATH": os.environ["PATH"], "BENCHFLEET_STATE": str(tmp_path / "state")}
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    full = subprocess.run(
        ["sh", "-c", '"$@" >/dev/full', "sh", *words],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert full.returncode == 2
    assert full.stderr.startswith("error: cannot write the result: No space left on device\n")
    assert not (tmp_path / "state" / "bugs").exists()


def test_a_plan_of_ten_thousand_trials_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "apiVersion: benchfleet/v1\nkind: Job\nname: many\nmodel: {path: m}\nengine: {kind: simulated, args: {tp_size: 8}}\n"
        "workloads: {single: {concurrency: 1, output_tokens: 20}}\nmeasure: {launches: 10000}\n"
    )
    shown = fleetctl("plan", str(tmp_path / "job.yaml"), state=tmp_path)
    assert shown.stdout.count("block ") == 10_000


@pytest.mark.parametrize(
    ("lacks", "command", "extra"), [("pydantic", "lint", "controller"), ("uvloop", "run", "agent")]
)
def test_an_installation_without_an_extra_says_which_one_to_install(
    tmp_path: Path, lacks: str, command: str, extra: str
) -> None:
    assert fleetctl("init", str(tmp_path), state=tmp_path).returncode == 0
    arguments = [command, str(tmp_path / "job.yaml")]
    program = f"import sys; sys.modules[{lacks!r}] = None; from fleet_controller.cli.main import main; sys.exit(main({arguments!r}))"
    env = {"PATH": os.environ["PATH"], "BENCHFLEET_STATE": str(tmp_path / "state")}
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 2
    assert (
        f"error: the Python module {lacks} is not installed\n  install benchfleet[{extra}]"
        in told.stderr
    )
    assert not (tmp_path / "state" / "agent").exists()
