"""Promises of `compare --csv`: anybody's numbers give the same table, and each bad row is told by
its line.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.csv_runs import parse_csv_runs
from fleet_controller.analysis.verdict import Verdict

EAGLE3 = "".join(
    f"eagle3,{launch},{value}\n"
    for launch, value in enumerate((81.0, 83.6, 82.8, 92.0, 94.0), start=1)
)
SEED = f"variant,launch,value\n{EAGLE3}tuned,1,88.8\n"


def told(text: str) -> list[tuple[str, int, str]]:
    return [(finding.code, finding.line, finding.key) for finding in parse_csv_runs(text).findings]


def test_published_launches_give_the_published_mean_and_interval() -> None:
    numbers = parse_csv_runs(SEED)
    row = next(row for row in compare(numbers.runs, "tuned").rows if row.variant == "eagle3")
    assert row.mean is not None
    assert row.interval is not None
    assert [round(number, 1) for number in (row.mean, row.interval.low, row.interval.high)] == [
        86.7,
        79.4,
        94.0,
    ]
    assert row.verdict == Verdict.INCONCLUSIVE


def test_rows_of_one_launch_are_its_runs() -> None:
    (row,) = compare(
        parse_csv_runs("variant,launch,value\na,1,10\na,1,20\na,2,40\n").runs, "a"
    ).rows
    assert (row.launches, row.runs, row.mean) == (2, 3, pytest.approx((200**0.5 + 40) / 2))


def test_launches_are_paired_only_where_a_block_says_so() -> None:
    plain = "variant,launch,value\na,1,10\na,2,20\nb,1,11\nb,2,22\n"
    blocked = "variant,launch,value,block\na,1,10,1\na,2,20,2\nb,1,11,1\nb,2,22,2\n"
    assert [
        compare(parse_csv_runs(text).runs, "a").rows[1].method for text in (plain, blocked)
    ] == ["unpaired", "paired"]


def test_host_workload_and_metric_make_rows_of_their_own() -> None:
    header = "value,variant,launch,metric,host,workload\n"
    text = f"{header}0.011,a,1,tpot_s_mean,h1,w1\n0.012,a,1,tpot_s_mean,h2,w1\n88,a,1,output_tok_s,h1,w2\n"
    rows = [
        (row.host, row.workload, row.metric, row.mean)
        for row in compare(parse_csv_runs(text).runs, "a").rows
        if row.mean
    ]
    assert rows == [
        ("h1", "w1", "tpot_s_mean", 0.011),
        ("h1", "w2", "output_tok_s", 88.0),
        ("h2", "w1", "tpot_s_mean", 0.012),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("csv_column_missing", 1, name) for name in ("variant", "launch", "value")]),
        ("variant,launch\na,1\n", [("csv_column_missing", 1, "value")]),
        ("variant,launch,value\n", [("csv_empty", 1, "")]),
        ("variant,launch,value,hots\na,1,2,h\n", [("csv_column_unknown", 1, "hots")]),
        ("variant,launch,value,value\na,1,2,3\n", [("csv_column_twice", 1, "value")]),
        ("variant,launch,value\na,1,2\na,2\n", [("csv_cells", 3, "")]),
        (
            "variant,launch,value\na,1,fast\n\n,2,3\na,,4\n",
            [("csv_value", 2, "value"), ("csv_value", 4, "variant"), ("csv_value", 5, "launch")],
        ),
        (
            "variant,launch,value\na,1,0\na,2,-3\na,3,nan\na,4,inf\n",
            [("csv_value", line, "value") for line in (2, 3, 4, 5)],
        ),
        ("variant,launch,value,metric\na,1,2,output_toks\n", [("csv_value", 2, "metric")]),
        (
            "variant,launch,value,block\na,1,2,0\na,2,2,x\na,3,2,\n",
            [("csv_value", 2, "block"), ("csv_value", 3, "block")],
        ),
        ('variant,launch,value\n"a,1,2\n', [("csv_syntax", 2, "")]),
    ],
)
def test_bad_rows_are_told_by_line_and_column(
    text: str, expected: list[tuple[str, int, str]]
) -> None:
    assert told(text) == expected


def test_nearest_name_is_offered() -> None:
    assert parse_csv_runs("variant,launch,valu\n").findings[-1].hint == "did you mean 'value'?"


def test_byte_order_mark_and_blanks_of_a_spreadsheet_are_no_errors() -> None:
    numbers = parse_csv_runs("\ufeffvariant, launch, value\r\na, 1, 2.5\r\n\r\n")
    assert numbers.findings == ()
    assert numbers.runs[0].run.metrics == {"output_tok_s": 2.5}


@given(st.text())
def test_no_text_whatever_raises(text: str) -> None:
    numbers = parse_csv_runs(text)
    assert numbers.runs or numbers.findings
