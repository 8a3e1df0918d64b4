"""Owns the promises that hold for any text: reading it never raises, what is written reads back, no
secret comes out.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_controller.importers.detect_format import is_importable
from fleet_controller.importers.import_launch import import_launch
from fleet_controller.importers.shell.script import read_script
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.findings import JobRejected

CASES = sorted((Path(__file__).parent / "data" / "importers").glob("*.json"))
TEXTS = ["\n".join(json.loads(path.read_text(encoding="utf-8"))["input"]) for path in CASES]
SIGNS = [
    "$", "${", "}", "$(", "))", "`", '"', "'", "\\", "\\\n", "\n", "#", " ", "\t", "\r", "=", "(", ")", "A=(",
    '"${A[@]}"', "${A:-", "${#A}",
]  # fmt: skip
WORDS = [
    "for i in 1 2; do", "done", "if ", "then", "fi", "case x in", "esac", ";;", "{", "f()", "&", "|", "<<E", "E\n", ">", "2>&1", "eval ",
]  # fmt: skip
STARTS = [
    "export ", "env ", "python -m sglang.launch_server ", "--model-path ", "--tp ", "docker run ", "sglang serve ", "bash -c ", "ssh h ",
]  # fmt: skip
FORMS = [
    "services:\n", "  a:\n", "command: ", "[Service]\n", "ExecStart=", "FROM x\n", "CMD [", "apiVersion: v1\nkind: Pod\n", "containers:\n",
]  # fmt: skip
ODD = [
    "\0",
    "\u00a0",
    "–",
    "“",
    "\u2028",
    "é",
    "\U0001f600",
    "1e400",
    "9" * 20,
    "-",
    "--",
    "@",
    "%",
    "!",
    "~",
    "{{",
    "- ",
    ": ",
]
PARTS = st.sampled_from([*SIGNS, *WORDS, *STARTS, *FORMS, *ODD])
NEVER_OURS = {
    "yaml_syntax",
    "duplicate_key",
    "tab",
    "not_text",
    "key_not_text",
    "yaml_tag",
    "unknown_key",
    "too_large",
    "not_a_mapping",
}
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def check(text: str) -> None:
    is_importable(text)
    pasted = import_launch(text, "pasted")
    json.dumps(pasted.to_json(), allow_nan=False)
    lines = text.count("\n") + text.count("\r") + 1
    assert all(0 <= finding.line <= lines + 1 for finding in pasted.findings)
    if pasted.job_file:
        try:
            load_job(pasted.job_file, "job")
        except JobRejected as rejected:
            assert not {finding.code for finding in rejected.findings} & NEVER_OURS, pasted.job_file


@quick
@given(st.lists(PARTS | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_is_read_without_a_traceback_and_makes_sound_yaml(text: str) -> None:
    check(text)


@quick
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20), PARTS), max_size=4),
)
def test_damaged_launches_are_read_without_a_traceback_and_make_sound_yaml(
    text: str, damages: list[tuple[int, int, str]]
) -> None:
    for at, length, part in damages:
        start = at % (len(text) + 1)
        text = text[:start] + part + text[start + length :]
    check(text)


@quick
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0\r", exclude_categories=("Cs",)), max_size=12),
        min_size=1,
        max_size=6,
    )
)
def test_quoted_words_are_read_as_the_shell_reads_them(words: list[str]) -> None:
    [run] = read_script(
        f"echo {' '.join(shlex.quote(word) for word in words)}", FindingCollector("x")
    ).runs
    assert [word.text for word in run.words[1:]] == words


@quick
@given(st.text("abcXYZ0123456789", min_size=9, max_size=20), st.sampled_from(TEXTS))
def test_a_secret_never_comes_out_whatever_it_stands_beside(secret: str, text: str) -> None:
    secret = f"q9{secret}"
    variables = f"export MY_TOKEN={secret}\nexport OTHER=x-{secret}-y\n# {secret}\n"
    command = f"python -m sglang.launch_server --model-path m/{secret} --api-key {secret}\n"
    assert secret not in json.dumps(import_launch(variables + command + text, "pasted").to_json())


SHELL_LINES = [
    "a=1 b=2; echo $a ${b} \"$a $b\" '$a' \\$a",
    'A="x  y"; echo $A "$A" ${A}z',
    'X=(1 "2 3" 4); X+=(5); echo "${X[@]}" ${X[1]} "${X[@]:1:2}"',
    'echo ${U:-d e} "${U:-d e}" ${U-"q r"} ${U:+no} ${U:=set} $U',
    'f() { local n=$1; shift; echo $n "$@"; }; f 1 "2 3" 4',
    "echo a\\\nb c\\ d e'f'\"g\" $'h\\ti' # comment",
    'P=/a/b/c; echo ${P##*/} ${P%/*}; Q="$P/d"; echo $Q',
    'E=""; echo $E "$E" x${E}y; echo "a\\"b\\$c\\\\d"',
    'C="echo 1 2"; eval $C; CMD="echo z"; $CMD',
    "echo a;echo b&&echo c||true",
    "if true; then V=1; fi; echo $V",
]


@pytest.mark.parametrize("line", SHELL_LINES)
def test_shell_text_means_what_a_shell_makes_of_it(line: str) -> None:
    script = f'echo() {{ printf "%s|" "$@"; printf "\\n"; }}\n{line}\n'
    real = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    ).stdout
    runs = [
        run for run in read_script(line, FindingCollector("x")).runs if run.words[0].text == "echo"
    ]
    assert (
        "".join("|".join([*(word.text for word in run.words[1:]), ""]) + "\n" for run in runs)
        == real
    )
