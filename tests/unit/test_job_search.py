"""Promises of a search in a job file: what it means to an agent, what is refused, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_controller.core.gang import hold_limit_s
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.planning.estimate import trial_seconds
from fleet_controller.planning.job_plan import make_plan, trial_spec
from fleet_controller.yaml.findings import ERROR, JobRejected
from fleet_protos.search_rules import CONCURRENCY, RATE, max_runs
from fleet_protos.trial_types import Search
from fleet_protos.workload_rules import at_load, is_open_loop

HEAD = """\
apiVersion: benchfleet/v1
kind: Job
name: small
model: {path: m}
engine: {kind: simulated}
workloads:
"""
SLO = "output_tokens: 50, slo: {ttft_p99: 2s}"


def load(*workloads: str) -> LoadedJob:
    return load_job(HEAD + "".join(f"  {text}\n" for text in workloads), "job.yaml")


def refused(*workloads: str) -> list[tuple[str, int, int, str]]:
    with pytest.raises(JobRejected) as rejected:
        load(*workloads)
    return [
        (one.code, one.line, one.column, one.message)
        for one in rejected.value.findings
        if one.severity == ERROR
    ]


def test_a_search_of_rates_has_arrivals_and_no_rate() -> None:
    [cell] = load(
        f"open: {{search: {{of: rate, from: 1, to: 64}}, duration: 60s, {SLO}}}"
    ).job.workloads
    assert (cell.name, cell.search) == ("open", Search(RATE, 1.0, 64.0, 0.05, 0.99))
    assert (cell.rate_per_s, cell.concurrency, cell.requests, cell.duration_s) == (0, 0, 0, 60)
    assert (cell.arrivals, is_open_loop(cell)) == ("poisson", True)
    assert (at_load(cell, 8.0).rate_per_s, is_open_loop(at_load(cell, 8.0))) == (8.0, True)


def test_a_search_of_concurrencies_has_as_many_requests_as_each_load_takes() -> None:
    [cell] = load(
        f"busy: {{search: {{of: concurrency, from: 2, to: 32, within: 10%, goodput: 95%}}, {SLO}}}"
    ).job.workloads
    assert cell.search == Search(CONCURRENCY, 2.0, 32.0, 0.1, 0.95)
    assert [
        (at_load(cell, load).concurrency, at_load(cell, load).requests) for load in (2.0, 32.0)
    ] == [(2, 10), (32, 128)]
    assert (
        is_open_loop(at_load(cell, 8.0)),
        at_load(replace(cell, requests=50), 8.0).requests,
    ) == (
        False,
        50,
    )
    [chats] = load(
        f"chats: {{search: {{of: concurrency, from: 1, to: 8}}, sessions: {{turns: 3}}, {SLO}}}"
    ).job.workloads
    assert (at_load(chats, 4.0).requests, at_load(chats, 4.0).turns) == (24, 3)


@pytest.mark.parametrize(
    ("body", "code", "place", "message"),
    [
        (
            "search: {of: rate, from: 8, to: 8}, duration: 1m",
            "bad_search",
            "8}",
            "from 8 to 8: there is nothing to search",
        ),
        (
            "search: {of: rate, from: 9, to: 8}, duration: 1m",
            "bad_search",
            "8}",
            "from 9 to 8: there is nothing to search",
        ),
        (
            "search: {of: rate, from: 1, to: 8}",
            "missing_key",
            "a:",
            "a search over rates needs `duration`",
        ),
        (
            "concurrency: [1, 2], search: {of: concurrency, from: 1, to: 8}",
            "two_loads",
            "a:",
            "`concurrency` and `search`",
        ),
        (
            "rate: 4, duration: 1m, search: {of: rate, from: 1, to: 8}",
            "two_loads",
            "a:",
            "`rate` and `search`",
        ),
        (
            "ramp: [{start: 0, end: 4, duration: 9s}], search: {of: rate, from: 1, to: 8}",
            "two_loads",
            "a:",
            "`ramp` and `search`",
        ),
        (
            "search: {of: concurrency, from: 1, to: 8}, duration: 1m",
            "wrong_loop",
            "duration:",
            "`duration` applies only to",
        ),
        (
            "search: {of: rate, from: 1, to: 8}, requests: 9, duration: 1m",
            "wrong_loop",
            "requests:",
            "`requests` applies only to",
        ),
        (
            "search: {of: concurrency, from: 1, to: 8}, arrivals: constant",
            "wrong_loop",
            "arrivals:",
            "`arrivals` applies only to",
        ),
        (
            "search: {of: rate, from: 1, to: 8}, duration: 1m, sessions: {turns: 2}",
            "wrong_loop",
            "sessions:",
            "`sessions` applies only",
        ),
        (
            "search: {of: concurrency, from: 1.5, to: 8}",
            "bad_search",
            "1.5",
            "`from` is 1.5, not a whole number of requests in flight",
        ),
        (
            "search: {of: concurrency, from: 1, to: 64}, requests: 32",
            "bad_search",
            "32",
            "at most 32 requests in flight",
        ),
        (
            "search: {of: concurrency, from: 1, to: 8}, requests: 16, sessions: {turns: 4}",
            "bad_search",
            "16",
            "at most 4 requests in flight",
        ),
        (
            "search: {of: rate, from: 1, to: 99999}, duration: 1h",
            "too_many_requests",
            "search:",
            "359,996,400 requests",
        ),
        (
            "search: {of: rps, from: 1, to: 8}, duration: 1m",
            "bad_choice",
            "rps",
            "`rps`, not `rate` or `concurrency`",
        ),
        (
            "search: {of: rate, form: 1, to: 8}, duration: 1m",
            "missing_key",
            "search:",
            "`from` is missing",
        ),
        (
            "search: {of: rate, from: 0, to: 8}, duration: 1m",
            "out_of_range",
            "0,",
            "must be above 0",
        ),
        (
            "search: {of: rate, from: 1, to: 8, within: 90%}, duration: 1m",
            "out_of_range",
            "90%",
            "must be at most 0.5",
        ),
        (
            "search: {of: rate, from: 1, to: 8}, arrivals: gamma, duration: 1m",
            "missing_key",
            "a:",
            "needs `burstiness`",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_where_it_stands(
    body: str, code: str, place: str, message: str
) -> None:
    workload = f"a: {{{body}, {SLO}}}"
    found_code, line, column, told = refused(workload)[0]
    assert (found_code, line, message in told) == (code, 7, True), told
    assert f"  {workload}"[column - 1 :].startswith(place)


@pytest.mark.parametrize(("slo", "place"), [("", "search:"), (", slo: {}", "slo:")])
def test_a_search_without_a_limit_to_meet_is_refused(slo: str, place: str) -> None:
    workload = f"a: {{search: {{of: rate, from: 1, to: 8}}, duration: 1m, output_tokens: 5{slo}}}"
    [(code, line, column, message)] = refused(workload)
    assert (code, line, "no limit is set there" in message) == ("bad_search", 7, True)
    assert f"  {workload}"[column - 1 :].startswith(place)


def test_a_search_that_cannot_be_read_hides_nothing_else() -> None:
    found = refused(
        f"a: {{search: {{of: rate, to: 8}}, duration: 1m, {SLO}}}", "b: {output_tokens: 5}"
    )
    assert [(code, line) for code, line, _, _ in found] == [("missing_key", 7), ("no_load", 8)]


def test_a_key_is_named_as_it_is_written() -> None:
    with pytest.raises(JobRejected) as rejected:
        load(f"a: {{search: {{of: rate, form: 1, steps: 2, from: 1, to: 8}}, duration: 1m, {SLO}}}")
    assert [one.hint for one in rejected.value.findings] == [
        "did you mean `from`?",
        "known keys: of, from, to, within, goodput",
    ]


def test_the_guess_of_the_time_and_the_longest_hold_grow_with_the_search() -> None:
    job = load(f"a: {{search: {{of: rate, from: 1, to: 64}}, duration: 60s, {SLO}}}").job
    plan = make_plan(job, ["h"])
    wider = replace(
        job, workloads=(replace(job.workloads[0], search=Search(RATE, 1.0, 1024.0, 0.01, 0.99)),)
    )
    one, other = (trial_seconds(plan.trials[0], each) for each in (job, wider))
    assert 0.5 * 60 * max_runs(job.workloads[0].search) < one < other
    spec = trial_spec(job, plan, plan.trials[0], 1, "j")
    assert hold_limit_s(spec) > max_runs(job.workloads[0].search) * (
        60 + job.workloads[0].request_timeout_s
    )
