"""Parses summaries of `bench_serving`, printed or as JSON lines. Judges which of their numbers may
be compared.

It knows the labels of 0.4.1 - 0.5.23 (`sglang.bench_serving`, later `sglang.benchmark.serving`),
including the old typo `reqeuest`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_HEADER = re.compile(r"={2,60} *Serving Benchmark Result *={2,60}")
_LABELLED = re.compile(r"([A-Z#][^:|]{2,60}):\s+(\S.*)")
_LATENCY = re.compile(r"(mean|median|std|max|p\d\d) (e2e latency|ttft|tpot|itl) \(ms\)")
_REQUESTED = re.compile(r"\bnum_prompts=(\d{1,9})|(?<!\d)(\d{1,9})/(\d{1,9}) \[\d")
_NOT_STREAMED = re.compile(r"\bdisable_stream=True\b")
_LABELS = {
    "backend": "backend",
    "traffic request rate": "request_rate",
    "max request concurrency": "concurrency",
    "max reqeuest concurrency": "concurrency",  # 0.4.1
    # the tool from which SGLang derived its own, as other harnesses run it
    "maximum request concurrency": "concurrency",
    "successful requests": "completed",
    "failed requests": "failed",
    "benchmark duration (s)": "duration_s",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "total generated tokens (retokenized)": "retokenized",
    "request throughput (req/s)": "requests_s",
    "input token throughput (tok/s)": "input_tok_s",
    "output token throughput (tok/s)": "output_tok_s",
    "peak output token throughput (tok/s)": "peak_output_tok_s",
    "peak concurrent requests": "peak_concurrency",
    "total token throughput (tok/s)": "total_tok_s",
    "concurrency": "achieved_concurrency",
    "accept length": "accept_len",
    "cache hit rate": "cache_hit_rate",
    "last generation throughput (tok/s)": "last_gen_tok_s",  # bench_offline_throughput
}
_JSON = {
    "backend": "backend",
    "request_rate": "request_rate",
    "max_concurrency": "concurrency",
    "completed": "completed",
    "duration": "duration_s",
    "total_input_tokens": "total_input_tokens",
    "total_output_tokens": "total_output_tokens",
    "total_output_tokens_retokenized": "retokenized",
    "request_throughput": "requests_s",
    "input_throughput": "input_tok_s",
    "output_throughput": "output_tok_s",
    "max_output_tokens_per_s": "peak_output_tok_s",
    "total_throughput": "total_tok_s",
    "concurrency": "achieved_concurrency",
    "accept_length": "accept_len",
}
# A block without any of these is not a summary of this tool: other benchmarks print the rest too.
_IDENTIFYING = frozenset(
    {"completed", "total_output_tokens", "retokenized", "output_tok_s", "peak_output_tok_s"}
)
_WHOLE = frozenset(
    {
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "retokenized",
        "concurrency",
        "peak_concurrency",
        "failed",
    }
)
_FIRST_TOKEN = ("ttft", "tpot", "itl", "peak")
_RETOKENIZED_APART = 0.05
_LINE_LIMIT = 400

LOST_REQUESTS_HINT = (
    "{share:.0f} % of the requests failed (typically the client's limit of open files or "
    "connections at an unlimited rate). Do not compare these numbers."
)
NONE_DONE_HINT = "No request was answered: the numbers say nothing about the speed of this server."
UNSEEN_HINT = (
    "The client did not see the output as it was streamed (older clients of the chat API ignore "
    "reasoning_content): its latencies are placeholders, not values. Use a newer client or the "
    "native /generate backend."
)
NO_GAPS_WARNING = (
    "no time between tokens was measured: each answer was one token or one chunk, so 0.00 is a "
    "placeholder"
)
NOT_STREAMED_HINT = (
    "The answers were not streamed: the time to first token is the time of the whole answer, and "
    "no time between tokens was measured."
)


@dataclass(frozen=True, slots=True)
class ServingSummary:
    """Holds one summary of `bench_serving`.

    `figures` has the printed values, in tokens per second or seconds, or in milliseconds if the
    name ends in `_ms`. `status` is ok, partial (requests are missing), failed (no request was
    answered) or invalid_latency. `invalid` lists the kinds of latency that must not be shown.
    """

    figures: Mapping[str, Any] = field(default_factory=dict)
    requested: int | None = None
    status: str = "ok"
    failed: int | None = None
    valid: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    hint: str = ""
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the summary as `fleetctl diagnose` shows it."""
        return {
            "figures": dict(self.figures),
            "requested": self.requested,
            "status": self.status,
            "failed": self.failed,
            "valid": list(self.valid),
            "invalid": list(self.invalid),
            "hint": self.hint,
            "warnings": list(self.warnings),
        }


def read_serving_summaries(text: str, requested: int | None = None) -> tuple[ServingSummary, ...]:
    """Return every summary in the output of bench_serving. Return an empty tuple for other text.
    Never raises.

    `requested` is the number of prompts, if the caller knows it. Otherwise the number is read from
    `num_prompts=` or from the progress bar.
    """
    from_json = [judge_summary(figures, requested or count) for figures, count in _json_lines(text)]
    if from_json:
        return tuple(from_json)
    parts = _HEADER.split(text)
    before, blocks = (parts[0], parts[1:]) if len(parts) > 1 else (text, parts)
    found, preceding = [], before
    for block in blocks:
        figures = _figures(block)
        if _IDENTIFYING & figures.keys() and len(figures) > 1:
            found.append(
                judge_summary(
                    figures,
                    requested or _requested_prompts(preceding),
                    streamed=not _NOT_STREAMED.search(preceding),
                )
            )
        preceding = block
    return tuple(found)


def judge_summary(
    figures: Mapping[str, Any], requested: int | None = None, *, streamed: bool = True
) -> ServingSummary:
    """Return a summary of the figures that says which of them are valid.

    The status `partial` takes precedence over `invalid_latency`. The status `failed` takes
    precedence over both.
    """
    completed, lost = figures.get("completed"), figures.get("failed")
    if requested is None and isinstance(completed, int) and isinstance(lost, int):
        requested = completed + lost
    failed = (
        max(0, requested - completed)
        if requested is not None and isinstance(completed, int)
        else None
    )
    unseen = _has_placeholder_zero(figures)
    invalid = tuple(
        kind for kind in _FIRST_TOKEN if (unseen or not streamed) and _has_kind(figures, kind)
    )
    blank = not invalid and figures.get("mean_itl_ms") == 0
    kinds = ("itl",) if blank else invalid
    valid = tuple(
        name
        for name in figures
        if name != "retokenized" and not any(_is_kind(name, kind) for kind in kinds)
    )
    status, hint = "ok", ""
    if invalid or unseen:
        status, hint = "invalid_latency", UNSEEN_HINT if unseen else NOT_STREAMED_HINT
    if failed and requested:
        status, hint = "partial", LOST_REQUESTS_HINT.format(share=100 * failed / requested)
    if completed == 0:
        status, hint, valid = "failed", NONE_DONE_HINT, ()
    warnings = (
        *_warnings(figures, requested, unseen=unseen),
        *([NO_GAPS_WARNING] if blank else []),
    )
    return ServingSummary(figures, requested, status, failed, valid, kinds, hint, warnings)


def _has_placeholder_zero(figures: Mapping[str, Any]) -> bool:
    """Return whether a latency or token count is 0 although the server produced output."""
    output = figures.get("total_output_tokens")
    if output is None:
        output = figures.get("completed", 1)
    zeroes = [
        figures[name]
        for name in ("retokenized", "mean_ttft_ms", "median_ttft_ms")
        if name in figures
    ]
    return bool(output) and any(value == 0 for value in zeroes)


def _warnings(figures: Mapping[str, Any], requested: int | None, *, unseen: bool) -> Iterator[str]:
    if requested is None:
        yield (
            "the number of requested prompts is unknown: compare it with the successful requests "
            "before you use the numbers"
        )
    counted, again = figures.get("total_output_tokens"), figures.get("retokenized")
    if (
        counted
        and again is not None
        and not unseen
        and abs(again - counted) / counted > _RETOKENIZED_APART
    ):
        yield (
            f"tokenising the text again gives {again} tokens, but the server counted {counted}: "
            f"latencies per token use the number of tokens that the client counted"
        )
    if figures.get("median_tpot_ms") == 0 and not unseen:
        yield (
            "the median time per output token is 0: each answer arrived in one chunk, or "
            "each chunk had several tokens (speculation)"
        )


def _is_kind(name: str, kind: str) -> bool:
    return kind in name.split("_")


def _has_kind(figures: Mapping[str, Any], kind: str) -> bool:
    return any(_is_kind(name, kind) for name in figures)


def _figures(block: str) -> dict[str, Any]:
    """Return the values of the labelled lines in a block. If a label occurs twice, the first line
    counts.
    """
    found: dict[str, Any] = {}
    for line in block.splitlines():
        labelled = _LABELLED.fullmatch(line.strip()) if len(line) < _LINE_LIMIT else None
        name = _name(labelled[1].strip().lower()) if labelled else ""
        if labelled and name and name not in found:
            found[name] = _value(name, labelled[2])
    return found


def _name(label: str) -> str:
    latency = _LATENCY.fullmatch(label)
    if latency:
        return f"{latency[1]}_{latency[2].removesuffix(' latency')}_ms"
    return _LABELS.get(label, "")


def _value(name: str, text: str) -> Any:
    """Return a printed value as a number, or None for a text such as `not set`.

    An infinite request rate stays the word `inf`, so that the result can be written as JSON.
    """
    if name == "backend":
        return text
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        return None
    if not math.isfinite(value):
        return text if name == "request_rate" else None
    return round(value) if name in _WHOLE else value


def _requested_prompts(text: str) -> int | None:
    """Return `num_prompts=` of the arguments, or else the total of the last progress bar."""
    found = list(_REQUESTED.finditer(text))
    named = [int(match[1]) for match in found if match[1]]
    if named:
        return named[-1]
    bars = [int(match[3]) for match in found if match[3]]
    return bars[-1] if bars else None


def _json_lines(text: str) -> Iterator[tuple[dict[str, Any], int | None]]:
    for line in text.splitlines():
        if not line.lstrip().startswith("{"):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and "completed" in record and "total_output_tokens" in record:
            yield _figures_from_json(record), _requested_in_record(record)


def _figures_from_json(record: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        **_JSON,
        **{
            name: name.replace("e2e_latency", "e2e")
            for name in record
            if name.endswith(("_ttft_ms", "_tpot_ms", "_itl_ms"))
        },
    }
    names |= {
        name: name.replace("e2e_latency", "e2e")
        for name in record
        if name.endswith("_e2e_latency_ms")
    }
    return {ours: _plain(record[name]) for name, ours in names.items() if name in record and ours}


def _plain(value: Any) -> Any:
    return (
        "inf"
        if isinstance(value, float) and value == math.inf
        else None
        if isinstance(value, float) and math.isnan(value)
        else value
    )


def _requested_in_record(record: Mapping[str, Any]) -> int | None:
    """Return how many requests a JSON record is about, or None if it does not say so.

    With --output-details the record has an entry for each request, including failed requests. Some
    versions write the number itself.
    """
    for name in ("input_lens", "errors", "ttfts"):
        if isinstance(record.get(name), Sequence) and not isinstance(record[name], str):
            return len(record[name])
    asked = record.get("num_prompts")
    return asked if isinstance(asked, int) else None
