"""Owns the rules on what a workload asks: which prompts there are, and where random ones would make a measurement invalid."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from fleet_controller.job_file.job_models import Requests, Workload
from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.job_file.prompt_kinds import BUILTIN_PROMPTS, FILE, PREFIX, RANDOM
from fleet_controller.job_file.sglang_arguments import normalise
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import WARNING, Finding

_LOOPS = "random prompts make degenerate text: its output loops, and a draft guesses loops well, so acceptance looks better than it is"
_FORCE = "write prompts of people, or `force_random: true` if the speed of random ones is what you want to know"


def check(reading: Reading, path: Path, requests: Requests, workload: Workload) -> Iterator[Finding]:
    """What is wrong with the prompts of one kind of requests of a workload, as far as they could be read."""
    place = (*path, "prompts")
    if not reading.is_sound(place):
        return
    if requests.prompts == RANDOM:
        yield from _random(reading, path, requests, workload)
    elif requests.prompts is not None:
        yield from _known(reading, place, requests.prompts)
    if workload.trace is not None and requests.prompts not in (None, RANDOM):
        message = "a trace has prompts of its own, made to its lengths"
        yield reading.finding("wrong_prompts", place, message, "remove `prompts`; `random` alone may stand beside a trace", at_key=True)
    for key in ("input_tokens", "vocabulary", "force_random"):
        if requests.prompts != RANDOM and reading.is_sound((*path, key)) and reading.is_written((*path, key)):
            message = f"`{key}` is about `prompts: random`"
            yield reading.finding("wrong_prompts", (*path, key), message, "remove it, or write `prompts: random`", at_key=True)


def _known(reading: Reading, place: Path, written: str) -> Iterator[Finding]:
    known = [PREFIX + name for name in BUILTIN_PROMPTS]
    if written.startswith(FILE) or written in known:
        return
    near = get_close_matches(written[:64], [*known, RANDOM], n=1, cutoff=0.6)
    hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}, {FILE}PATH and {RANDOM}"
    yield reading.finding("unknown_prompts", place, f"there are no prompts `{written[:64]}`", hint)


def _random(reading: Reading, path: Path, requests: Requests, workload: Workload) -> Iterator[Finding]:
    place = (*path, "prompts")
    if workload.api != "generate" and reading.is_sound((*path[:2], "api")):
        message = f"random prompts are token ids, which `api: {workload.api}` does not take"
        yield reading.finding("wrong_prompts", place, message, "write `api: generate`")
    if workload.trace is None and requests.input_tokens is None and reading.is_sound((*path, "input_tokens")):
        message = "`prompts: random` needs `input_tokens`: how long each prompt is"
        yield reading.finding("missing_key", (*path, "input_tokens"), message, "write `input_tokens: 1000`")
    if not workload.force_random and reading.is_sound((*path[:2], "force_random")):
        if _speculates(reading):
            yield reading.finding("random_prompts", place, f"the server speculates, and {_LOOPS}", _FORCE)
        elif reading.job.engine.kind == "external":
            message = f"should this server speculate: {_LOOPS}"
            yield reading.finding("random_prompts", place, message, _FORCE, severity=WARNING)


def _speculates(reading: Reading) -> bool:
    """Whether any variant asks for speculation."""
    settings = [reading.job.engine.args, *(level.args for levels in reading.job.factors.values() for level in levels.values())]
    return any(normalise(args).get("speculative_algorithm") for args in settings)
