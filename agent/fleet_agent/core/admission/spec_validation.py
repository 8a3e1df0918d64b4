"""Validates a TrialSpec that was received over the network: names, lengths, counts and numbers.

Every field is checked according to its type. A field that is added later is therefore checked
without a change here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, fields, is_dataclass
from typing import Any
from urllib.parse import urlsplit

from fleet_protos.attachment import MAX_FILES, MAX_PACKED_CHARS, file_ref, unpack
from fleet_protos.search_rules import CONCURRENCY, RATE
from fleet_protos.trial_types import EngineKind, EngineSpec, Search, TrialSpec, Workload
from fleet_protos.workload_rules import at_load, file_refs, parts_of, requests_due

LARGEST_SPEC_BYTES = 1 << 20
_LONGEST = 4096  # characters of a name, path or address
_LONGEST_VALUE = 32 << 10  # of one argument or variable; Linux takes at most 128 KiB
_MOST_ENTRIES = 1000
_MOST_WORKLOADS = 200
_DEEPEST = 12
_LARGEST_NUMBER = 1e15
_LONGEST_WAIT_S = 30 * 86400.0
_MOST_RUNS, _MOST_AT_ONCE, _MOST_REQUESTS = 10_000, 100_000, 10_000_000

_TRIAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_ARGUMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,255}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
_MEETING = re.compile(r"[A-Za-z0-9.:\[\]_%-]{1,255}:\d{1,5}")
_SHM_SIZE = re.compile(r"[0-9]{1,15}[A-Za-z]{0,2}")
_CPUS = re.compile(r"[a-z]{0,8}|[0-9,-]{1,4096}")
_VALUES = ("engine.args.", "engine.env.")  # texts that only the server reads
_PROMPTS = re.compile(r"[a-z]+:[A-Za-z0-9._-]{1,100}")
_CONTENT = re.compile(r"files\[\d+\]\.content")
_LAYOUT = str.maketrans("", "", "\n\t")


def find_spec_faults(spec: TrialSpec) -> tuple[str, ...]:
    """Return the faults of a trial spec, one line for each fault, at most twenty lines."""
    found = []
    for fault in _iter_faults(spec):
        found.append(fault)
        if len(found) == 20:
            break
    return tuple(found)


def find_value_faults(value: Any) -> tuple[str, ...]:
    """Return faults in the texts, numbers and counts of any received value, at most three lines."""
    return tuple(fault for fault, _ in zip(_walk("", value, 0), range(3), strict=False))


def _iter_faults(spec: TrialSpec) -> Iterator[str]:
    yield from _walk("", spec, 0)
    yield from _check_trial(spec)
    yield from _check_engine(spec.engine)
    yield from _check_measure(spec)


def shorten_untrusted(text: str, limit: int = 60) -> str:
    """Return a received text in a form that is safe in a message: quoted, cut to `limit`
    characters, with all characters other than printable ASCII escaped.
    """
    return ascii(text if len(text) <= limit else f"{text[:limit]}…")


# Any field


def _walk(key: str, value: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        yield f"{key}: nested deeper than {_DEEPEST}"
    elif isinstance(value, str):
        yield from _check_text(key, value)
    elif isinstance(value, float | int):
        yield from _check_number(key, value)
    elif isinstance(value, Mapping | list | tuple) or is_dataclass(value):
        yield from _check_count(key, 0 if is_dataclass(value) else len(value))
        for name, place, entry in _parts(key, value):
            yield from (*_check_text(f"a name in {key}", name), *_walk(place, entry, depth + 1))


def _parts(key: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, dotted key, content) for each entry of a container. `name` is the key of a
    mapping, which the sender chose. It is empty for other containers.
    """
    if isinstance(value, Mapping):
        yield from (
            (str(name), f"{key}.{shorten_untrusted(str(name))[1:-1]}", entry)
            for name, entry in value.items()
        )
    elif isinstance(value, list | tuple):
        yield from (("", f"{key}[{index}]", entry) for index, entry in enumerate(value))
    else:
        yield from (
            ("", f"{key}.{item.name}" if key else item.name, getattr(value, item.name))
            for item in fields(value)
        )


def _check_number(key: str, number: float) -> Iterator[str]:
    is_seed = key.rpartition(".")[2] == "seed"  # any 64 bits
    if not math.isfinite(number) or (abs(number) > _LARGEST_NUMBER and not is_seed):
        yield f"{key}: {number} is not finite or too large"


def _check_count(key: str, count: int) -> Iterator[str]:
    if count > _MOST_ENTRIES:
        yield f"{key}: {count} entries, more than {_MOST_ENTRIES}"


def _check_text(key: str, text: str) -> Iterator[str]:
    is_value = key.startswith(_VALUES)
    longest = (
        MAX_PACKED_CHARS if _CONTENT.fullmatch(key) else _LONGEST_VALUE if is_value else _LONGEST
    )
    if len(text.encode(errors="surrogatepass")) > longest:
        yield f"{key}: {len(text)} characters, longer than {longest} bytes"
    elif not (text.isprintable() or (is_value and text.translate(_LAYOUT).isprintable())):
        mark = next(
            mark for mark in text if not mark.isprintable() and not (is_value and mark in "\n\t")
        )
        yield f"{key}: contains the invisible character {mark!a}"


# Particular fields


def _check_trial(spec: TrialSpec) -> Iterator[str]:
    if not _TRIAL_ID.fullmatch(spec.trial_id):
        yield (
            f"trial_id: {shorten_untrusted(spec.trial_id)} is not valid: it must have 1 to 200 "
            "letters, digits, `.`, `-` and `_`, and begin with a letter or digit"
        )
    if not 0 < spec.attempt < 1_000_000:
        yield f"attempt: {spec.attempt} is not between 1 and 999999"
    if (count := len(spec.workloads)) > _MOST_WORKLOADS:
        yield f"workloads: there are {count}, more than the limit of {_MOST_WORKLOADS}"
    yield from _check_files(spec)


def _check_files(spec: TrialSpec) -> Iterator[str]:
    """Check that every file can be unpacked, and that each file that a workload names is attached
    to the trial.
    """
    if (count := len(spec.files)) > MAX_FILES:
        yield f"files: there are {count}, more than the limit of {MAX_FILES}"
        return
    for index, file in enumerate(spec.files):
        try:
            unpack(file.content)
        except ValueError as error:
            yield f"files[{index}]: {error}"
    refs = {file_ref(file) for file in spec.files}
    for index, load in enumerate(spec.workloads):
        if missing := sorted(file_refs(load) - refs):
            name = shorten_untrusted(missing[0])
            yield f"workloads[{index}]: the trial has no file {name}"


def _check_engine(engine: EngineSpec) -> Iterator[str]:
    yield from (
        f"engine.env: {shorten_untrusted(name)} is not a valid variable name"
        for name in (*engine.env, *engine.env_removed)
        if not _VARIABLE.fullmatch(name)
    )
    yield from (
        f"engine.args: {shorten_untrusted(name)} is not a valid argument name"
        for name in engine.args
        if not _ARGUMENT.fullmatch(name)
    )
    for key, text in (
        ("model.path", engine.model_path),
        ("engine.python", engine.python),
        ("container.python", engine.container.python),
    ):
        if text.startswith("-"):
            yield (
                f"{key}: {shorten_untrusted(text)} begins with a dash, so it would be read as an "
                "option"
            )
    patterns = (
        ("engine.container.image", engine.container.image, _IMAGE),
        ("engine.container.shm_size", engine.container.shm_size, _SHM_SIZE),
        ("engine.gang.init_address", engine.gang.init_address, _MEETING),
        ("engine.cpu_binding", engine.cpu_binding, _CPUS),
    )
    yield from (
        f"{key}: {shorten_untrusted(text)} is not a valid value"
        for key, text, pattern in patterns
        if text and not pattern.fullmatch(text)
    )
    if engine.container.runtime not in ("", "docker", "podman"):
        yield (
            f"engine.container.runtime: {shorten_untrusted(engine.container.runtime)} is neither "
            "docker nor podman"
        )
    if engine.kind is EngineKind.EXTERNAL:
        yield from _check_url(engine.url)
    for key, wait_s in (
        ("ready_timeout_s", engine.ready_timeout_s),
        ("stop_timeout_s", engine.stop_timeout_s),
    ):
        if not 0 <= wait_s <= _LONGEST_WAIT_S:
            yield f"engine.{key}: {wait_s:g} is not between 0 and {_LONGEST_WAIT_S:g} seconds"


def _check_url(url: str) -> Iterator[str]:
    try:
        place = urlsplit(url)
        sound = (
            place.scheme in ("http", "https")
            and place.hostname
            and place.port != 0
            and place.username is None
        )
    except ValueError:
        sound = False
    if not sound or " " in url or "?" in url or "#" in url:
        yield f"engine.url: {shorten_untrusted(url)} is not http://HOST:PORT or https://HOST:PORT"


def _check_measure(spec: TrialSpec) -> Iterator[str]:
    if (runs := spec.measure.runs_max) > _MOST_RUNS:
        yield f"measure.runs_max: {runs} is more than the limit of {_MOST_RUNS}"
    for index, load in enumerate(spec.workloads):
        searched = tuple(_check_search(load.search)) if load.search.of else ()
        found = searched or _check_workload(
            at_load(load, load.search.most) if load.search.of else load
        )
        yield from (f"workloads[{index}]{fault}" for fault in found)


def _check_search(search: Search) -> Iterator[str]:
    """Yield the faults of a search. Each text begins with the key inside the workload."""
    if search.of not in (RATE, CONCURRENCY):
        yield f".search.of: {shorten_untrusted(search.of)} is neither {RATE} nor {CONCURRENCY}"
    elif (
        not 0 < search.least < search.most < _LARGEST_NUMBER
        or search.most / search.least > _LARGEST_NUMBER
    ):
        yield f".search: {search.least:g} to {search.most:g} is not a range to search"
    elif search.of == CONCURRENCY and not (search.least.is_integer() and search.most.is_integer()):
        yield f".search: {search.least:g} to {search.most:g} are not whole numbers of requests"
    elif not (0 < search.within < 1 and 0 < search.goodput <= 1):
        yield (
            f".search: within {search.within:g} and goodput {search.goodput:g} are not between 0 "
            "and 1"
        )


def _check_workload(load: Workload) -> Iterator[str]:
    """Yield the faults of a workload. Each text begins with the key inside the workload."""
    for key, count, most in _counts(load):
        if count > most:
            yield f".{key}: {count} is more than the limit of {most}"
    if load.cache not in ("", "salt", "flush", "shared"):
        yield f".cache: {shorten_untrusted(load.cache)} is not salt, flush or shared"
    for prompts in (
        part.prompts
        for part in parts_of(load)
        if part.prompts and not _PROMPTS.fullmatch(part.prompts)
    ):
        yield (
            f".prompts: {shorten_untrusted(prompts)} is not builtin:NAME, file:REF or random:ids"
        )
    yield from (f": {fault}" for fault in _check_arrivals(load))
    for key, wait_s in (
        ("duration_s", load.duration_s),
        ("request_timeout_s", load.request_timeout_s),
        ("think_s", load.think_s),
    ):
        if not 0 <= wait_s <= _LONGEST_WAIT_S:
            yield f".{key}: {wait_s:g} is not between 0 and {_LONGEST_WAIT_S:g} seconds"


def _counts(load: Workload) -> tuple[tuple[str, int, int], ...]:
    counts = (
        ("concurrency", load.concurrency, _MOST_AT_ONCE),
        ("requests", load.requests, _MOST_REQUESTS),
    )
    return (*counts, ("turns", load.turns, _MOST_ENTRIES))


def _check_arrivals(load: Workload) -> Iterator[str]:
    """Check the numbers of an open loop. All its requests are created before the run starts, so
    their number is limited.
    """
    numbers = (
        load.rate_per_s,
        load.burstiness,
        load.speed,
        *(number for stage in load.stages for number in astuple(stage)),
    )
    if min(numbers) < 0 or not all(part.weight > 0 for part in parts_of(load)):
        yield "rate, burstiness, speed and stages must be at least 0, and weights above 0"
    requests = load.rate_per_s * load.duration_s + sum(requests_due(stage) for stage in load.stages)
    if not requests <= _MOST_REQUESTS:
        yield f"{requests:g} requests in a run are more than the limit of {_MOST_REQUESTS}"
