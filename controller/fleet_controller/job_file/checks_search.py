"""Owns the rules on a search for the highest load: what it needs beside it, and between which loads
there is anything to look for.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_controller.job_file.job_models import Search, Workload
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.document import KeyPath
from fleet_controller.yaml.findings import Finding

_BAD_SEARCH = "bad_search"


def check_search(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    """What is wrong with the search of a workload whose shape is sound."""
    if workload.search is None:
        return
    place = (*path, "search")
    yield from _check_search_slo(parsed, path, workload)
    yield from _check_search_bounds(parsed, place, workload.search)
    if workload.search.of == "concurrency":
        yield from _check_search_in_flight(parsed, path, workload, workload.search)


def _check_search_slo(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    if workload.slo is None or (workload.slo.ttft_p99 is None and workload.slo.tpot_p99 is None):
        message = "a search looks for the highest load that meets the `slo`, and there is no limit in it to meet"
        at = (*path, "search" if workload.slo is None else "slo")
        yield parsed.finding(
            _BAD_SEARCH,
            at,
            message,
            "write `slo: {ttft_p99: 2s, tpot_p99: 50ms}`, or one of the two",
            at_key=True,
        )


def _check_search_bounds(parsed: ParsedJob, place: KeyPath, search: Search) -> Iterator[Finding]:
    if search.from_ >= search.to:
        message = (
            f"the search goes from {search.from_:g} to {search.to:g}: there is nothing to look for"
        )
        hint = "write as `from` a load that is surely met, and as `to` one that surely is not"
        yield parsed.finding(_BAD_SEARCH, (*place, "to"), message, hint)


def _check_search_in_flight(
    parsed: ParsedJob, path: KeyPath, workload: Workload, search: Search
) -> Iterator[Finding]:
    for key, value in (("from", search.from_), ("to", search.to)):
        if not value.is_integer():
            message = f"{value:g} requests in flight at once cannot be"
            yield parsed.finding(
                _BAD_SEARCH, (*path, "search", key), message, "write a whole number, or `of: rate`"
            )
    turns = workload.sessions.turns if workload.sessions else 1
    if workload.requests is not None and workload.requests < search.to * turns:
        users = workload.requests // turns
        message = f"a run of {workload.requests} requests has at most {users} in flight, and the search goes up to {search.to:g}"
        hint = f"write `requests: {round(search.to) * turns}` or more, or leave it out: then each load has as many as it takes"
        yield parsed.finding(_BAD_SEARCH, (*path, "requests"), message, hint)
