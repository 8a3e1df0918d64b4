"""What the load patterns of a job file mean, and that every example of the guide is one."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import re
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from fleet_controller.core.job import Job
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.job_file.job_models import job_schema
from fleet_controller.job_file.workload_files import BadWorkloadFile, read_prompts, read_trace
from fleet_controller.planning.estimate import estimate_seconds, trial_seconds
from fleet_controller.planning.job_plan import make_plan, trial_specs
from fleet_controller.yaml.findings import ERROR, JobRejected
from fleet_protos import workload_rules as rules
from fleet_protos.attachment import MAX_PACKED_CHARS, Prompts, Trace, file_ref, pack, unpack
from fleet_protos.trial_types import Lengths, Part, SharedPrefix, Stage, Workload

GUIDE = Path(__file__).parents[2] / "docs" / "user" / "job-file.md"
FILES = {
    "traces/afternoon.csv": "time_s,prompt_tokens,output_tokens\n0,100,20\n1.5,300,5\n90,40,7\n1000,1,1\n",
    "traces/mooncake.jsonl": (
        '{"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [7, 8, 9]}\n'
        '{"timestamp": 3000, "input_length": 1400, "output_length": 0, "hash_ids": [7, 8, 10]}\n'
    ),
}
FILES["prompts/questions.txt"] = "What is a bridge?\n\n  Why is the sea salt?  \n"
FILES["prompts/ours.jsonl"] = (
    '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},'
    ' {"role": "assistant", "content": "Yes?"}]}\n'
    '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]}\n'
)
FILES["prompts/shared.json"] = json.dumps(
    [
        {
            "conversations": [
                {"from": "human", "value": "One?"},
                {"from": "gpt", "value": "1"},
                {"from": "human", "value": "Two?"},
            ]
        },
        {
            "id": "2",
            "conversations": [
                {"from": "gpt", "value": "I begin"},
                {"from": "human", "value": "No"},
            ],
        },
        {
            "id": "3",
            "conversations": [
                {"from": "system", "value": "s"},
                {"from": "human", "value": "Three?"},
            ],
        },
        {"id": "4", "conversations": []},
    ]
)
HEAD = """\
apiVersion: benchfleet/v1
kind: Job
name: small
model: {path: m}
engine: {kind: simulated}
"""
EXAMPLES = [
    textwrap.dedent(block)
    for block in re.findall(r"(?:^ {4}workloads:\n)(?:^ {4,}.*\n)+", GUIDE.read_text(), re.M)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return tmp_path


def load(workloads: str, folder: Path | None = None) -> LoadedJob:
    return load_job(
        f"{HEAD}workloads:\n{textwrap.indent(textwrap.dedent(workloads), '  ')}", "job.yaml", folder
    )


def cells(workloads: str, folder: Path | None = None) -> dict[str, Workload]:
    return {cell.name: cell for cell in load(workloads, folder).job.workloads}


def refused(workloads: str, folder: Path | None = None) -> list[tuple[str, int, str]]:
    with pytest.raises(JobRejected) as rejected:
        load(workloads, folder)
    return [
        (finding.code, finding.line, finding.message)
        for finding in rejected.value.findings
        if finding.severity == ERROR
    ]


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda text: text.split("\n")[1].split(":")[0].strip()
)
def test_an_example_of_the_guide_has_no_findings_and_keeps_the_schema(
    example: str, folder: Path
) -> None:
    assert load_job(HEAD + example, "job.yaml", folder).findings == ()
    content: Any = YAML(typ="safe", pure=True).load(HEAD + example)
    assert [
        error.message
        for error in jsonschema.Draft202012Validator(job_schema()).iter_errors(content)
    ] == []


def test_a_ramp_is_an_open_loop_as_long_as_its_stages() -> None:
    [cell] = cells(
        "r: {ramp: [{start: 0, end: 8, duration: 1m}, {start: 8, end: 8, duration: 30}], output_tokens: 5}"
    ).values()
    assert cell.stages == (Stage(0.0, 8.0, 60.0), Stage(8.0, 8.0, 30.0))
    assert rules.is_open_loop(cell)
    assert (cell.rate_per_s, cell.concurrency, cell.duration_s) == (0.0, 0, 90.0)
    assert cell.arrivals == "poisson"


def test_gamma_arrivals_carry_their_burstiness() -> None:
    found = cells(
        "b: {rate: [1, 2], arrivals: gamma, burstiness: 0.5, duration: 1m, output_tokens: 5}"
    )
    assert {name: (cell.arrivals, cell.burstiness) for name, cell in found.items()} == {
        "b@1/s": ("gamma", 0.5),
        "b@2/s": ("gamma", 0.5),
    }


def test_lengths_are_a_number_or_a_distribution() -> None:
    found = cells(
        """\
        fixed: {concurrency: 1, output_tokens: 5}
        even: {concurrency: 1, output_tokens: {uniform: {min: 100, max: 300}}}
        tail: {concurrency: 1, output_tokens: {lognormal: {median: 150, sigma: 0.8, max: 2000}}}
        """
    )
    assert {name: (cell.output_tokens, cell.output) for name, cell in found.items()} == {
        "fixed": (5, Lengths()),
        "even": (0, Lengths("uniform", 100, 300)),
        "tail": (0, Lengths("lognormal", most=2000, median=150, sigma=0.8)),
    }
    assert (
        rules.mean_output_tokens(found["even"]),
        round(rules.mean_output_tokens(found["tail"])),
    ) == (
        200,
        207,
    )


def test_the_guess_of_the_time_knows_ramps_and_drawn_lengths() -> None:
    ramp, rate, even, fixed = (
        load(text).job
        for text in (
            "a: {ramp: [{start: 0, end: 8, duration: 30s}, {start: 8, end: 8, duration: 30s}], output_tokens: 200}",
            "a: {rate: 6, duration: 60s, output_tokens: 200}",
            "a: {concurrency: 1, output_tokens: {uniform: {min: 100, max: 300}}}",
            "a: {concurrency: 1, output_tokens: 200}",
        )
    )
    assert estimate_seconds(make_plan(ramp, ["h"]), ramp) == estimate_seconds(
        make_plan(rate, ["h"]), rate
    )
    assert estimate_seconds(make_plan(even, ["h"]), even) == estimate_seconds(
        make_plan(fixed, ["h"]), fixed
    )


def test_workloads_go_into_a_plan_as_json() -> None:
    plan = make_plan(
        load("r: {ramp: [{start: 0, end: 8, duration: 1m}], output_tokens: 5}").job, ["h"]
    )
    assert json.loads(json.dumps(plan.to_json()))["workloads"] == ["r"]


def trace_of(job: Job, cell: Workload) -> Trace:
    [file] = [file for file in job.files if file_ref(file) == cell.trace]
    trace = unpack(file.content)
    assert isinstance(trace, Trace)
    return trace


def test_a_trace_is_as_much_of_its_file_as_is_replayed_and_no_more_travels(folder: Path) -> None:
    job = load(
        "a: {trace: traces/afternoon.csv, speed: 2, duration: 1m}\nb: {trace: traces/afternoon.csv, requests: 2}",
        folder,
    ).job
    first, second = job.workloads
    assert rules.is_open_loop(first)
    assert (first.requests, first.speed, first.duration_s, first.output_tokens) == (3, 2.0, 45.0, 0)
    assert (second.requests, second.speed, second.duration_s) == (2, 1.0, 1.5)
    [file] = job.files
    assert (file.name, file.sha256) == (
        "trace:traces/afternoon.csv",
        sha256(FILES["traces/afternoon.csv"].encode()).hexdigest(),
    )
    assert (
        trace_of(job, first)
        == trace_of(job, second)
        == Trace((0, 1500, 90_000), (100, 300, 40), (20, 5, 7))
    )


def test_a_mooncake_trace_keeps_its_blocks(folder: Path) -> None:
    job = load("a: {trace: traces/mooncake.jsonl}", folder).job
    assert trace_of(job, job.workloads[0]) == Trace(
        (0, 3000), (1100, 1400), (20, 1), ((7, 8, 9), (7, 8, 10))
    )


def test_the_text_of_a_job_carries_its_files_and_reads_back_as_the_same_job_anywhere(
    folder: Path,
) -> None:
    loaded = load("a: {trace: traces/afternoon.csv}", folder)
    again = load_job(loaded.text, "job.yaml")
    assert (again.job, again.text) == (loaded.job, loaded.text)
    assert load_job(loaded.text, "job.yaml", folder / "nowhere").job == loaded.job
    assert [
        trial_specs(again.job, plan, trial, "j-1")[0].files
        for plan in [make_plan(again.job, ["h"])]
        for trial in plan.trials[:1]
    ] == [again.job.files]


def test_without_its_files_a_job_is_refused_and_nothing_is_opened() -> None:
    [(code, line, message)] = refused("a: {trace: /etc/passwd}")
    assert (code, line) == ("file_not_attached", 7)
    assert message == "the file `/etc/passwd` is not attached to the job"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "time_s,prompt_tokens\n1,2\n",
            "line 1: the first line has no column `output_tokens`",
        ),
        (
            "a.csv",
            "time_s,prompt_tokens,output_tokens\n1,2,3\n2,x,3\n",
            "line 3: `prompt_tokens` is 'x', not a number of 0 or more",
        ),
        ("a.csv", "time_s,prompt_tokens,output_tokens\n1,2\n", "line 2: `output_tokens` is 'None'"),
        (
            "a.csv",
            "time_s,prompt_tokens,output_tokens\n1,2.5,3\n",
            "line 2: a length is not a whole number of tokens",
        ),
        ("a.csv", "time_s,prompt_tokens,output_tokens\n", "the file holds no requests"),
        ("a.jsonl", '{"timestamp": 1, "input_length": 2}\n', "line 1: `output_length` is missing"),
        (
            "a.jsonl",
            '\n{"timestamp": -1, "input_length": 2, "output_length": 3}\n',
            "line 2: `timestamp` is '-1'",
        ),
        (
            "a.jsonl",
            '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": ["a"]}\n',
            "line 1: `hash_ids` is not a list",
        ),
        ("a.jsonl", "{\n", "line 1: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.txt", "1 2 3\n", "a trace must be a .jsonl file with timestamp"),
    ],
)
def test_a_file_that_is_no_trace_is_told_with_its_line(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    [(code, _, told)] = refused(f"a: {{trace: {name}}}", tmp_path)
    assert code == "bad_file"
    assert told.startswith(f"`{name}`: {message}")


def test_a_trace_that_is_not_text_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"time_s\n\xff\n")
    assert refused("a: {trace: a.csv}", tmp_path) == [
        ("bad_file", 7, "`a.csv`: line 2: the file is not UTF-8 text")
    ]


def test_a_file_that_is_not_there_is_told_at_each_workload_that_names_it(tmp_path: Path) -> None:
    found = refused("a: {trace: none.csv}\nb: {trace: none.csv}", tmp_path)
    assert [(code, line) for code, line, _ in found] == [
        ("file_unreadable", 7),
        ("file_unreadable", 8),
    ]


def test_files_that_are_too_large_to_travel_are_refused_with_their_size(tmp_path: Path) -> None:
    drawn = random.Random(1)
    rows = "".join(
        f"{number},{drawn.randrange(9_999_999)},{drawn.randrange(9_999_999)}\n"
        for number in range(60_000)
    )
    (tmp_path / "a.csv").write_text("time_s,prompt_tokens,output_tokens\n" + rows)
    [(code, _, message)] = refused("a: {trace: a.csv}", tmp_path)
    assert code == "files_too_large"
    assert "but the limit is 384 KiB" in message
    assert load("a: {trace: a.csv, duration: 1h}", tmp_path).job.workloads[0].requests == 3600


def test_a_job_names_no_more_files_than_are_kept_with_each_trial(tmp_path: Path) -> None:
    for number in range(17):
        (tmp_path / f"{number}.txt").write_text(f"question {number}\n")
    found = refused(
        "\n".join(
            f'a{n}: {{concurrency: 1, prompts: "file:{n}.txt", output_tokens: 5}}'
            for n in range(17)
        ),
        tmp_path,
    )
    assert [(code, line) for code, line, _ in found] == [("files_too_large", 23)]


def test_a_file_that_packs_well_is_no_larger_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(("the same again " * 1000 + "\n") * 1200)
    [(code, _, message)] = refused(
        'a: {concurrency: 1, prompts: "file:a.txt", output_tokens: 5}', tmp_path
    )
    assert (code, message) == (
        "files_too_large",
        "`a.txt` is too large: the content has 17 MiB, more than the limit of 16 MiB",
    )


def test_what_was_packed_to_burst_is_refused() -> None:
    bomb = base64.b64encode(
        zlib.compress(b'{"prompts":[[["user","' + b"x" * (17 << 20) + b'"]]]}', 9)
    ).decode()
    assert len(bomb) < 50_000
    with pytest.raises(ValueError, match="the content is truncated, or has more than 16 MiB"):
        unpack(bomb)


@given(
    st.text(max_size=60)
    | st.binary(max_size=60).map(lambda data: base64.b64encode(zlib.compress(data)).decode())
)
def test_any_word_is_unpacked_or_refused(word: str) -> None:
    with contextlib.suppress(ValueError):
        unpack(word)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2))
LINES = st.dictionaries(
    st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "messages"]), VALUES
).map(json.dumps)
ROWS = st.text("0123456789.,-e\n", max_size=60).map(
    lambda rows: f"time_s,prompt_tokens,output_tokens\n{rows}"
)
FILE_TEXTS = st.text(max_size=80) | LINES | ROWS


@given(FILE_TEXTS, st.sampled_from([".csv", ".jsonl", ".json", ".txt"]))
def test_any_file_is_read_or_refused_in_words(content: str, ending: str) -> None:
    for read in (read_trace, read_prompts):
        with contextlib.suppress(BadWorkloadFile):
            found = read(content.encode(), f"a{ending}")
            assert unpack(pack(found)) == found


def test_files_are_not_kept_with_more_trials_than_the_store_has_room_for(folder: Path) -> None:
    job = load("a: {trace: traces/afternoon.csv}", folder).job
    big = replace(
        job, files=(replace(job.files[0], content="x" * MAX_PACKED_CHARS),), launches=1000
    )
    assert "files_too_large" in [finding.code for finding in make_plan(big, ["h"]).findings]
    assert make_plan(replace(big, launches=100), ["h"]).findings == ()


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-9], lambda text: text[:40] + "AAAA" + text[44:], lambda text: text[::-1]],
)
def test_a_damaged_file_behind_a_job_is_refused(damage: Callable[[str], str], folder: Path) -> None:
    job = load("a: {trace: traces/mooncake.jsonl}", folder)
    content = job.job.files[0].content
    broken = job.text.replace(content, damage(content))
    with pytest.raises(JobRejected) as rejected:
        load_job(broken, "job.yaml")
    assert {finding.code for finding in rejected.value.findings} <= {
        "bad_file",
        "file_not_attached",
    }


def prompts_of(job: Job, cell: Workload) -> Prompts:
    [file] = [file for file in job.files if cell.prompts == f"file:{file_ref(file)}"]
    prompts = unpack(file.content)
    assert isinstance(prompts, Prompts)
    return prompts


@pytest.mark.parametrize(
    ("name", "conversations"),
    [
        ("questions.txt", ((("user", "What is a bridge?"),), (("user", "Why is the sea salt?"),))),
        (
            "ours.jsonl",
            (
                (("system", "Be brief."), ("user", "Hi")),
                (("user", "A"), ("assistant", "B"), ("user", "C")),
            ),
        ),
        ("shared.json", ((("user", "One?"),), (("user", "Three?"),))),
    ],
)
def test_prompts_of_a_file_are_those_that_a_user_asked(
    name: str, conversations: tuple[object, ...], folder: Path
) -> None:
    job = load(
        f'a: {{concurrency: 2, prompts: "file:prompts/{name}", output_tokens: 5}}', folder
    ).job
    assert prompts_of(job, job.workloads[0]).conversations == conversations


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", " \n", "the file holds no prompt of a user"),
        ("a.md", "hi", "a file of prompts must be a .jsonl file of {messages: …} objects"),
        ("a.jsonl", '{"prompt": "x"}', "line 1: `messages` is missing or not a list"),
        (
            "a.jsonl",
            '{"messages": [{"role": "user"}]}',
            "line 1: a message has no text in `content`",
        ),
        (
            "a.jsonl",
            '{"messages": [{"role": "pirate", "content": "x"}]}',
            "line 1: the role 'pirate' is not one of system",
        ),
        (
            "a.jsonl",
            '{"messages": [{"role": "system", "content": "x"}]}',
            "line 1: the request has no message of the user",
        ),
        ("a.json", '{"a": 1}', "line 1: a ShareGPT file must be a list of conversations"),
        ("a.json", '[{"conversations": 1}]', "conversation 1 has no list `conversations`"),
        ("a.json", "[\n{", "line 2: not JSON"),
        (
            "a.json",
            '[{"conversations": [{"from": "gpt", "value": "x"}]}]',
            "the file holds no prompt of a user",
        ),
    ],
)
def test_a_file_without_prompts_is_told_with_its_line(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    [(code, _, told)] = refused(
        f'a: {{concurrency: 1, prompts: "file:{name}", output_tokens: 5}}', tmp_path
    )
    assert code == "bad_file"
    assert told.startswith(f"`{name}`: {message}")


def test_random_prompts_are_ids_of_their_lengths() -> None:
    text = (
        "a: {concurrency: 1, api: generate, prompts: random, input_tokens: 100, output_tokens: 5}\n"
    )
    text += "b: {concurrency: 1, api: generate, prompts: random, vocabulary: 512, output_tokens: 5,"
    text += " input_tokens: {uniform: {min: 5, max: 9}}}"
    found = cells(text)
    assert [(cell.prompts, cell.input_tokens, cell.input, cell.vocabulary) for cell in found.values()] == [
        ("random:ids", 100, Lengths(), 0), ("random:ids", 0, Lengths("uniform", 5, 9), 512)
    ]  # fmt: skip


def test_the_cache_is_salted_unless_prompts_share_their_beginnings(folder: Path) -> None:
    found = cells(
        """\
        plain: {concurrency: 1, output_tokens: 5}
        groups: {concurrency: 1, output_tokens: 5, shared_prefix: {groups: 4, tokens: 100}}
        control: {concurrency: 1, output_tokens: 5, shared_prefix: {groups: 4, tokens: 100}, cache: salt}
        warm: {concurrency: 1, output_tokens: 5, cache: shared}
        blocks: {trace: traces/mooncake.jsonl}
        blockless: {trace: traces/afternoon.csv}
        """,
        folder,
    )
    assert {
        name: (cell.cache, rules.parts_of(cell)[0].prefix, rules.shares_cache(cell))
        for name, cell in found.items()
    } == {
        "plain": ("", SharedPrefix(), False),
        "groups": ("flush", SharedPrefix(4, 100), True),
        "control": ("salt", SharedPrefix(4, 100), False),
        "warm": ("shared", SharedPrefix(), True),
        "blocks": ("flush", SharedPrefix(), True),
        "blockless": ("", SharedPrefix(), False),
    }


def test_a_mixture_has_a_part_for_each_kind_of_requests(folder: Path) -> None:
    job = load(
        """\
        a:
          concurrency: 4
          mix:
            - {weight: 3, output_tokens: 100, shared_prefix: {groups: 2, tokens: 50}}
            - {prompts: "file:prompts/questions.txt", output_tokens: {uniform: {min: 10, max: 30}}}
        """,
        folder,
    ).job
    [cell] = job.workloads
    assert cell.mix == (
        Part(3.0, "builtin:chat", 100, prefix=SharedPrefix(2, 50)),
        Part(1.0, f"file:{file_ref(job.files[0])}", output=Lengths("uniform", 10, 30)),
    )
    assert (cell.prompts, cell.output_tokens, cell.cache, rules.mean_output_tokens(cell)) == (
        "",
        0,
        "flush",
        80,
    )
    assert rules.file_refs(cell) == {file_ref(job.files[0])}


@pytest.mark.parametrize(
    "key",
    [
        "sessions: {turns: 2}",
        "shared_prefix: {groups: 2, tokens: 9}",
        "cache: shared",
        "cache: flush",
    ],
)
def test_an_agent_that_does_not_know_a_key_cannot_measure_without_it(key: str) -> None:
    """What it reads of such a workload has no prompts, which it refuses."""
    [cell] = cells(
        f"a: {{concurrency: 2, {key}, prompts: builtin:code, output_tokens: 5}}"
    ).values()
    assert (cell.prompts, cell.output_tokens) == ("", 0)
    assert (cell.mix[0].prompts, cell.mix[0].output_tokens) == ("builtin:code", 5)


def test_sessions_are_whole_and_their_cache_is_their_own() -> None:
    found = cells(
        """\
        one: {concurrency: 1, sessions: {turns: 4, think_time: 5s}, output_tokens: 5}
        many: {concurrency: [2, 8], sessions: {turns: 3}, output_tokens: 5, cache: salt}
        written: {concurrency: 2, requests: 9, sessions: {turns: 3}, output_tokens: 5}
        """
    )
    assert {
        name: (cell.requests, cell.turns, cell.think_s, cell.cache) for name, cell in found.items()
    } == {
        "one": (4, 4, 5.0, "flush"),
        "many@2": (12, 3, 0.0, "salt"),
        "many@8": (48, 3, 0.0, "salt"),
        "written": (9, 3, 0.0, "flush"),
    }


def test_the_guess_of_the_time_knows_think_times() -> None:
    thinking, quick = (
        load(
            f"a: {{concurrency: 2, requests: 8, sessions: {{turns: 4, think_time: {think}}}, output_tokens: 100}}"
        ).job
        for think in ("10s", "0s")
    )
    runs = 1 + (thinking.measure.runs_min + thinking.measure.runs_max) / 2
    per_trial = trial_seconds(make_plan(thinking, ["h"]).trials[0], thinking) - trial_seconds(
        make_plan(quick, ["h"]).trials[0], quick
    )
    assert per_trial == pytest.approx(runs * 4 * 10)
