"""Checks the prompts of a workload: known names, and random prompts that would make a measurement
invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.sglang_arguments import normalise_arguments
from fleet_controller.job_file.workload_models import (
    BUILTIN_PREFIX,
    FILE_PREFIX,
    RANDOM_PROMPTS,
    Requests,
    Workload,
)
from fleet_controller.yaml.findings import WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath
from fleet_protos.attachment import BUILTIN_PROMPTS

_DEGENERATE_TEXT = (
    "random prompts lead to degenerate text: the output loops, and a draft predicts loops well, so "
    "acceptance looks better than it is"
)
_FORCE_RANDOM_HINT = (
    "use real prompts, or write `force_random: true` if you want the speed with random prompts"
)


def check_prompts(
    parsed: ParsedJob, path: KeyPath, requests: Requests, workload: Workload
) -> Iterator[Finding]:
    """Check the prompts of one kind of requests of a workload, if they could be read."""
    place = (*path, "prompts")
    if not parsed.is_sound(place):
        return
    if requests.prompts == RANDOM_PROMPTS:
        yield from _check_random_prompts(parsed, path, requests, workload)
    elif requests.prompts is not None:
        yield from _check_known_prompts(parsed, place, requests.prompts)
    if workload.trace is not None and requests.prompts not in (None, RANDOM_PROMPTS):
        message = "the prompts of a trace are generated with the lengths in the trace"
        yield parsed.finding(
            "wrong_prompts",
            place,
            message,
            "remove `prompts`; with a trace, only `prompts: random` is possible",
            at_key=True,
        )
    for key in ("input_tokens", "vocabulary", "force_random"):
        if (
            requests.prompts != RANDOM_PROMPTS
            and parsed.is_sound((*path, key))
            and parsed.is_written((*path, key))
        ):
            message = f"`{key}` applies only to `prompts: random`"
            yield parsed.finding(
                "wrong_prompts",
                (*path, key),
                message,
                f"remove `{key}`, or write `prompts: random`",
                at_key=True,
            )


def _check_known_prompts(parsed: ParsedJob, place: KeyPath, written: str) -> Iterator[Finding]:
    known = [BUILTIN_PREFIX + name for name in BUILTIN_PROMPTS]
    if written.startswith(FILE_PREFIX) or written in known:
        return
    names = ", ".join(known)
    near = get_close_matches(written[:64], [*known, RANDOM_PROMPTS], n=1, cutoff=0.6)
    hint = (
        f"did you mean `{near[0]}`?"
        if near
        else f"use one of these: {names}, {FILE_PREFIX}PATH or {RANDOM_PROMPTS}"
    )
    yield parsed.finding(
        "unknown_prompts", place, f"there are no prompts called `{written[:64]}`", hint
    )


def _check_random_prompts(
    parsed: ParsedJob, path: KeyPath, requests: Requests, workload: Workload
) -> Iterator[Finding]:
    place = (*path, "prompts")
    if workload.api != "generate" and parsed.is_sound((*path[:2], "api")):
        message = f"random prompts are token ids, which `api: {workload.api}` does not accept"
        yield parsed.finding("wrong_prompts", place, message, "write `api: generate`")
    if (
        workload.trace is None
        and requests.input_tokens is None
        and parsed.is_sound((*path, "input_tokens"))
    ):
        message = "`prompts: random` needs `input_tokens`, the length of each prompt"
        yield parsed.finding(
            "missing_key", (*path, "input_tokens"), message, "write `input_tokens: 1000`"
        )
    if not workload.force_random and parsed.is_sound((*path[:2], "force_random")):
        if _speculates(parsed):
            yield parsed.finding(
                "random_prompts",
                place,
                f"the server speculates, and {_DEGENERATE_TEXT}",
                _FORCE_RANDOM_HINT,
            )
        elif parsed.job.engine.kind == "external":
            message = f"if this server speculates: {_DEGENERATE_TEXT}"
            yield parsed.finding(
                "random_prompts", place, message, _FORCE_RANDOM_HINT, severity=WARNING
            )


def _speculates(parsed: ParsedJob) -> bool:
    """Return True if any variant asks for speculation."""
    settings = [
        parsed.job.engine.args,
        *(level.args for levels in parsed.job.factors.values() for level in levels.values()),
    ]
    return any(normalise_arguments(args).get("speculative_algorithm") for args in settings)
