"""Owns the rules that span the keys of one workload: which load it is, how it arrives, how long its
answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fleet_controller.job_file import checks_prompts, checks_search
from fleet_controller.job_file.attached_files import request_kinds
from fleet_controller.job_file.job_models import Lengths, Requests, Workload
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.document import KeyPath, dotted
from fleet_controller.yaml.findings import Finding

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


def check_workloads(parsed: ParsedJob) -> Iterator[Finding]:
    """What is wrong with each workload whose shape is sound."""
    for name, workload in parsed.job.workloads.items():
        path: KeyPath = ("workloads", name)
        for place, requests in request_kinds(path, workload):
            yield from checks_prompts.check_prompts(parsed, place, requests, workload)
        if parsed.is_sound(path):
            for rule in _WORKLOAD_RULES:
                yield from rule(parsed, path, workload)


def _loop(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    written = [key for key in _LOADS if getattr(workload, key) is not None]
    if len(written) > 1:
        message = f"a workload has one of {_join_or(_LOADS)}, this one has {_join_and(written)}"
        yield parsed.finding("two_loads", path, message, "make a workload of each", at_key=True)
    elif not written:
        message = f"the workload has none of {_join_or(_LOADS)}: it sends nothing"
        yield parsed.finding(
            "no_load",
            path,
            message,
            "write `concurrency: 1`, or `rate: 4` with `duration: 60s`",
            at_key=True,
        )
    kind = workload.search.of if written == ["search"] and workload.search else "".join(written[:1])
    if kind == "rate" and len(written) == 1 and workload.duration is None:
        message = f"{'a search of rates' if workload.search else '`rate`'} needs `duration`: how long requests arrive"
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
                f"`{key}` belongs to {_join_or(loads)}",
                f"remove it, or use {_join_or(loads)}",
            )
            yield parsed.finding("wrong_loop", (*path, key), message, hint, at_key=True)


def _repeated(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    for key in ("concurrency", "rate"):
        listed = getattr(workload, key)
        if isinstance(listed, tuple) and len(set(listed)) < len(listed):
            yield parsed.finding(
                "listed_twice", (*path, key), f"`{key}` lists a value twice", "list each once"
            )


def _burstiness(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    arrivals = workload.arrivals or "poisson"
    if arrivals == "gamma" and workload.burstiness is None:
        message = "`arrivals: gamma` needs `burstiness`: the shape of the gaps, 1 is poisson, below 1 requests come in bursts"
        yield parsed.finding(
            "missing_key", (*path, "burstiness"), message, "write `burstiness: 0.5`"
        )
    elif (
        arrivals != "gamma"
        and workload.burstiness is not None
        and (workload.rate or workload.ramp or workload.search)
    ):
        message = f"`burstiness` shapes `arrivals: gamma`, and these arrivals are {arrivals}"
        yield parsed.finding(
            "wrong_arrivals",
            (*path, "burstiness"),
            message,
            "write `arrivals: gamma`, or remove it",
            at_key=True,
        )


def _ramp(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    if workload.ramp is not None and not any(stage.start or stage.end for stage in workload.ramp):
        message = "every rate of the ramp is 0: it sends nothing"
        yield parsed.finding(
            "no_load",
            (*path, "ramp"),
            message,
            "give a stage a rate above 0, such as `end: 8`",
            at_key=True,
        )


def _too_many(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    rates = workload.rate if isinstance(workload.rate, tuple) else (workload.rate or 0.0,)
    if workload.search is not None and workload.search.of == "rate":
        rates = (workload.search.to,)
    due = max(rates) * (workload.duration or 0.0)
    due += sum((stage.start + stage.end) / 2 * stage.duration for stage in workload.ramp or ())
    if due > MOST_REQUESTS:
        key = next(key for key in ("rate", "search", "ramp") if getattr(workload, key) is not None)
        message = f"one run would send some {due:,.0f} requests, more than {MOST_REQUESTS:,}"
        yield parsed.finding(
            "too_many_requests",
            (*path, key),
            message,
            "lower the rate, or shorten the duration",
            at_key=True,
        )


def _lengths(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    for place, requests in request_kinds(path, workload):
        for key in ("output_tokens", "input_tokens"):
            lengths = getattr(requests, key)
            if isinstance(lengths, Lengths):
                yield from _check_drawn_lengths(parsed, (*place, key), lengths)


def _sessions(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    if workload.sessions is None:
        return
    if workload.api != "chat":
        message = f"a session carries messages, which `api: {workload.api}` does not take"
        yield parsed.finding(
            "bad_sessions", (*path, "sessions"), message, "write `api: chat`", at_key=True
        )
    if workload.requests and workload.requests % workload.sessions.turns:
        message = (
            f"{workload.requests} requests are no whole sessions of {workload.sessions.turns} turns"
        )
        whole = -(-workload.requests // workload.sessions.turns) * workload.sessions.turns
        yield parsed.finding(
            "bad_sessions", (*path, "requests"), message, f"write `requests: {whole}`"
        )


def _mix(parsed: ParsedJob, path: KeyPath, workload: Workload) -> Iterator[Finding]:
    for key in Requests.model_fields if workload.mix else ():
        if getattr(workload, key) is not None:
            message = f"beside `mix`, `{key}` is of no request: each part has its own"
            yield parsed.finding(
                "wrong_mix",
                (*path, key),
                message,
                "write it in the parts that it is for",
                at_key=True,
            )


def _check_drawn_lengths(parsed: ParsedJob, path: KeyPath, lengths: Lengths) -> Iterator[Finding]:
    key = path[-1]
    if (lengths.uniform is None) == (lengths.lognormal is None):
        how_many = "none" if lengths.uniform is None else "both"
        message = f"`{key}` is drawn from one of `uniform` and `lognormal`, this one has {how_many}"
        yield parsed.finding(
            "bad_lengths",
            path,
            message,
            f"write `{key}: {{uniform: {{min: 100, max: 500}}}}`",
            at_key=True,
        )
    elif lengths.uniform is not None and lengths.uniform.min > lengths.uniform.max:
        message = f"the least is {lengths.uniform.min} tokens and the most {lengths.uniform.max}"
        yield parsed.finding(
            "bad_lengths", (*path, "uniform", "min"), message, "write the smaller one as `min`"
        )
    elif lengths.lognormal is not None and lengths.lognormal.max < lengths.lognormal.median:
        message = f"`max` is {lengths.lognormal.max}, below the median of {lengths.lognormal.median:g}: more than half would be cut to it"
        yield parsed.finding(
            "bad_lengths",
            (*path, "lognormal", "max"),
            message,
            "raise `max`: ten times the median cuts off few",
        )


def _join_or(keys: tuple[str, ...]) -> str:
    *first, last = (f"`{key}`" for key in keys)
    return f"{', '.join(first)} or {last}" if first else last


def _join_and(keys: list[str]) -> str:
    return " and ".join(f"`{key}`" for key in keys)


_WORKLOAD_RULES: tuple[WorkloadRule, ...] = (
    _loop,
    _repeated,
    _burstiness,
    _ramp,
    _too_many,
    _lengths,
    _sessions,
    _mix,
    checks_search.check_search,
)
