"""Checks rules that span the keys of one workload: which load it has, how requests arrive, lengths
and the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fleet_controller.job_file.attached_files import request_kinds
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.prompt_checks import check_prompts
from fleet_controller.job_file.workload_models import (
    Lengths,
    Requests,
    Search,
    Workload,
)
from fleet_controller.yaml.findings import Finding
from fleet_controller.yaml.key_path import KeyPath, dotted

MOST_REQUESTS: Final = 1_000_000  # of one run, as `requests` allows

_LOADS: Final = ("concurrency", "rate", "ramp", "trace", "search")
_LOADS_OF_KEY: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": ("concurrency", "trace"),
    "arrivals": ("rate", "ramp"),
    "burstiness": ("rate", "ramp"),
    "duration": ("rate", "trace"),
    "speed": ("trace",),
    "shared_prefix": ("concurrency", "rate", "ramp"),
    "mix": ("concurrency", "rate", "ramp"),
    "sessions": ("concurrency",),
}
WorkloadRule = Callable[[ParsedJob, KeyPath, Workload], Iterator[Finding]]

_BAD_SEARCH = "bad_search"


def check_workloads(parsed: ParsedJob) -> Iterator[Finding]:
    """Yield what is wrong with each workload. Rules that span keys run only on a workload without
    broken values.
    """
    for name, workload in parsed.job.workloads.items():
        path: KeyPath = ("workloads", name)
        for place, requests in request_kinds(path, workload):
            yield from check_prompts(parsed, place, requests, workload)
        if parsed.is_sound(path):
            for rule in _WORKLOAD_RULES:
                yield from rule(parsed, path, workload)


def _check_load(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    written = [key for key in _LOADS if getattr(workload, key) is not None]
    choices = _join_or(_LOADS)
    if len(written) > 1:
        given = _join_and(written)
        message = f"a workload takes one of {choices}, but this workload has {given}"
        yield parsed.finding(
            "two_loads", path, message, "write a separate workload for each", at_key=True
        )
    elif not written:
        message = f"the workload has none of {choices}, so it sends no requests"
        yield parsed.finding(
            "no_load",
            path,
            message,
            "write `concurrency: 1`, or `rate: 4` with `duration: 60s`",
            at_key=True,
        )
    kind = workload.search.of if written == ["search"] and workload.search else "".join(written[:1])
    if kind == "rate" and len(written) == 1 and workload.duration is None:
        message = (
            f"{'a search over rates' if workload.search else '`rate`'} needs `duration`, the time "
            "in which requests arrive"
        )
        yield parsed.finding("missing_key", (*path, "duration"), message, "write `duration: 60s`")
    if (
        written
        and "trace" not in written
        and workload.output_tokens is None
        and workload.mix is None
    ):
        message = f"`output_tokens` is missing from `{dotted(path)}`"
        hint = "write how many tokens each answer has, such as `output_tokens: 500`"
        yield parsed.finding("missing_key", (*path, "output_tokens"), message, hint, at_key=True)
    for key, loads in _LOADS_OF_KEY.items():
        if len(written) == 1 and kind not in loads and getattr(workload, key) is not None:
            message, hint = (
                f"`{key}` applies only to {_join_or(loads)}",
                f"remove `{key}`, or use {_join_or(loads)}",
            )
            yield parsed.finding("wrong_loop", (*path, key), message, hint, at_key=True)


def _check_repeated(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    for key in ("concurrency", "rate"):
        listed = getattr(workload, key)
        if isinstance(listed, tuple) and len(set(listed)) < len(listed):
            yield parsed.finding(
                "listed_twice", (*path, key), f"`{key}` lists a value twice", "list each once"
            )


def _check_burstiness(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    arrivals = workload.arrivals or "poisson"
    if arrivals == "gamma" and workload.burstiness is None:
        message = (
            "`arrivals: gamma` needs `burstiness`, the shape of the gaps: 1 is Poisson, below 1 "
            "requests come in bursts"
        )
        yield parsed.finding(
            "missing_key", (*path, "burstiness"), message, "write `burstiness: 0.5`"
        )
    elif (
        arrivals != "gamma"
        and workload.burstiness is not None
        and (workload.rate or workload.ramp or workload.search)
    ):
        message = (
            f"`burstiness` applies only to `arrivals: gamma`, and these arrivals are {arrivals}"
        )
        yield parsed.finding(
            "wrong_arrivals",
            (*path, "burstiness"),
            message,
            "write `arrivals: gamma`, or remove `burstiness`",
            at_key=True,
        )


def _check_ramp(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    if workload.ramp is not None and not any(stage.start or stage.end for stage in workload.ramp):
        message = "every rate of the ramp is 0, so the workload sends no requests"
        yield parsed.finding(
            "no_load",
            (*path, "ramp"),
            message,
            "give a stage a rate above 0, such as `end: 8`",
            at_key=True,
        )


def _check_request_count(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    rates = workload.rate if isinstance(workload.rate, tuple) else (workload.rate or 0.0,)
    if workload.search is not None and workload.search.of == "rate":
        rates = (workload.search.to,)
    due = max(rates) * (workload.duration or 0.0)
    due += sum((stage.start + stage.end) / 2 * stage.duration for stage in workload.ramp or ())
    if due > MOST_REQUESTS:
        key = next(key for key in ("rate", "search", "ramp") if getattr(workload, key) is not None)
        message = (
            f"one run would send about {due:,.0f} requests, but the limit is {MOST_REQUESTS:,}"
        )
        yield parsed.finding(
            "too_many_requests",
            (*path, key),
            message,
            "lower the rate, or shorten the duration",
            at_key=True,
        )


def _check_lengths(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    for place, requests in request_kinds(path, workload):
        for key in ("output_tokens", "input_tokens"):
            lengths = getattr(requests, key)
            if isinstance(lengths, Lengths):
                yield from _check_drawn_lengths(parsed, (*place, key), lengths)


def _check_sessions(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    if workload.sessions is None:
        return
    if workload.api != "chat":
        message = f"a session sends chat messages, which `api: {workload.api}` does not accept"
        yield parsed.finding(
            "bad_sessions", (*path, "sessions"), message, "write `api: chat`", at_key=True
        )
    if workload.requests and workload.requests % workload.sessions.turns:
        message = (
            f"{workload.requests} requests do not make whole sessions of {workload.sessions.turns} "
            "turns"
        )
        whole = -(-workload.requests // workload.sessions.turns) * workload.sessions.turns
        yield parsed.finding(
            "bad_sessions", (*path, "requests"), message, f"write `requests: {whole}`"
        )


def _check_mix(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    for key in Requests.model_fields if workload.mix else ():
        if getattr(workload, key) is not None:
            message = f"`{key}` has no effect together with `mix`: each part has its own"
            yield parsed.finding(
                "wrong_mix",
                (*path, key),
                message,
                f"write `{key}` in the parts that need it",
                at_key=True,
            )


def _check_drawn_lengths(parsed: ParsedJob, path: KeyPath, lengths: Lengths) -> Iterator[Finding]:
    key = path[-1]
    if (lengths.uniform is None) == (lengths.lognormal is None):
        how_many = "none" if lengths.uniform is None else "both"
        message = f"`{key}` takes one of `uniform` and `lognormal`, but it has {how_many}"
        yield parsed.finding(
            "bad_lengths",
            path,
            message,
            f"write `{key}: {{uniform: {{min: 100, max: 500}}}}`",
            at_key=True,
        )
    elif lengths.uniform is not None and lengths.uniform.min > lengths.uniform.max:
        message = f"`min` is {lengths.uniform.min} tokens, above the `max` of {lengths.uniform.max}"
        yield parsed.finding(
            "bad_lengths", (*path, "uniform", "min"), message, "write the smaller one as `min`"
        )
    elif lengths.lognormal is not None and lengths.lognormal.max < lengths.lognormal.median:
        message = (
            f"`max` is {lengths.lognormal.max}, below the median of {lengths.lognormal.median:g}: "
            "more than half of the lengths would be cut to it"
        )
        yield parsed.finding(
            "bad_lengths",
            (*path, "lognormal", "max"),
            message,
            "raise `max`, for example to ten times the median, which cuts only few lengths",
        )


def _join_or(keys: tuple[str, ...]) -> str:
    *first, last = (f"`{key}`" for key in keys)
    return f"{', '.join(first)} or {last}" if first else last


def _join_and(keys: list[str]) -> str:
    return " and ".join(f"`{key}`" for key in keys)


def check_search(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    """Check the search of a workload that has no broken values."""
    if workload.search is None:
        return
    place = (*path, "search")
    yield from _check_search_slo(parsed, path, workload)
    yield from _check_search_bounds(parsed, place, workload.search)
    if workload.search.of == "concurrency":
        yield from _check_search_in_flight(parsed, path, workload, workload.search)


def _check_search_slo(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    if workload.slo is None or (workload.slo.ttft_p99 is None and workload.slo.tpot_p99 is None):
        message = (
            "a search looks for the highest load that meets the `slo`, but no limit is set there"
        )
        at = (*path, "search" if workload.slo is None else "slo")
        yield parsed.finding(
            _BAD_SEARCH,
            at,
            message,
            "write `slo: {ttft_p99: 2s, tpot_p99: 50ms}`, or one of the two limits",
            at_key=True,
        )


def _check_search_bounds(parsed: ParsedJob, place: KeyPath, search: Search) -> Iterator[Finding]:
    if search.from_ >= search.to:
        message = (
            f"the search goes from {search.from_:g} to {search.to:g}: there is nothing to search"
        )
        hint = (
            "write a load that surely meets the slo as `from`, and a load that surely misses it as "
            "`to`"
        )
        yield parsed.finding(_BAD_SEARCH, (*place, "to"), message, hint)


def _check_search_in_flight(
    parsed: ParsedJob, path: KeyPath, workload: Workload, search: Search
) -> Iterator[Finding]:
    for key, value in (("from", search.from_), ("to", search.to)):
        if not value.is_integer():
            message = f"`{key}` is {value:g}, not a whole number of requests in flight"
            yield parsed.finding(
                _BAD_SEARCH, (*path, "search", key), message, "write a whole number, or `of: rate`"
            )
    turns = workload.sessions.turns if workload.sessions else 1
    if workload.requests is not None and workload.requests < search.to * turns:
        users = workload.requests // turns
        needed = round(search.to) * turns
        message = (
            f"a run of {workload.requests} requests has at most {users} requests in flight, but "
            f"the search goes up to {search.to:g}"
        )
        hint = (
            f"write `requests: {needed}` or more, or remove `requests`: each load then gets as "
            "many requests as it needs"
        )
        yield parsed.finding(_BAD_SEARCH, (*path, "requests"), message, hint)


_WORKLOAD_RULES: tuple[WorkloadRule, ...] = (
    _check_load,
    _check_repeated,
    _check_burstiness,
    _check_ramp,
    _check_request_count,
    _check_lengths,
    _check_sessions,
    _check_mix,
    check_search,
)
