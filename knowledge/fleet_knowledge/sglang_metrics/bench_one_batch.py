"""Parses the output of `bench_one_batch` and `bench_one_batch_server`, printed or as JSON lines.

It knows the formats of 0.4.1 - 0.5.23. An accept length of -1 or `n/a` means that it was not
measured. The output of warm-ups is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_knowledge.sglang_metrics.accept_length import finite_number

_LINES = {
    "batch size": "batch_size",
    "input_len": "input_len",
    "output_len": "output_len",
    "latency": "latency_s",
    "ttft": "ttft_s",
    "last_ttft": "ttft_s",
    "input throughput": "input_tok_s",
    "output throughput": "output_tok_s",
    "(input + output) throughput": "overall_tok_s",
    "last generation throughput": "last_gen_tok_s",
    "acc_length": "accept_len",
    "cache hit rate": "cache_hit_rate",
}
_JSON = {
    "run_name": "run_name",
    "batch_size": "batch_size",
    "input_len": "input_len",
    "output_len": "output_len",
    "latency": "latency_s",
    "ttft": "ttft_s",
    "last_ttft": "ttft_s",
    "input_throughput": "input_tok_s",
    "output_throughput": "output_tok_s",
    "overall_throughput": "overall_tok_s",
    "last_gen_throughput": "last_gen_tok_s",
    "acc_length": "accept_len",
    "cache_hit_rate": "cache_hit_rate",
    "prefill_latency": "prefill_latency_s",
    "prefill_throughput": "input_tok_s",
    "median_decode_latency": "decode_latency_s",
    "median_decode_throughput": "output_tok_s",
    "total_latency": "latency_s",
    "num_early_stopped": "early_stopped",
}
_HEADS = {
    "batch size": "batch_size",
    "input len": "input_len",
    "latency (s)": "latency_s",
    "input throughput (tok/s)": "input_tok_s",
    "output throughput (tok/s)": "output_tok_s",
    "acc length": "accept_len",
    "cache hit rate": "cache_hit_rate",
}
_WHOLE = ("batch_size", "input_len", "output_len", "early_stopped")
_LABELLED = re.compile(
    r"^\s*([A-Za-z(][\w +()-]{0,60}?) *: +(-?[\d.]+|n/a|nan)(?: *(?:s|tok(?:en)?/s))?\s*$"
)
_STAGE = re.compile(
    r"^\s*(Prefill|Decode|Total)\. +(median )?latency: *([\d.]+) s, +"
    r"(?:median )?throughput: *([\d.]+) tok"
)
_LINE_LIMIT = 1000
_BENCHMARK = re.compile(r"^Benchmark \.\.\.", re.MULTILINE)


def read_one_batch_results(text: str) -> tuple[dict[str, Any], ...]:
    """Return the figures of every batch in the text, in seconds and tokens per second. Return an
    empty tuple for other text. Never raises.
    """
    parts = _BENCHMARK.split("\n".join(_measured(text)), maxsplit=1)
    for source in (_json_lines, _batches, _stages, _table):
        found = tuple(_clean(batch) for batch in source(parts[-1]))
        if found:
            return found
    return ()


def _measured(text: str) -> Iterator[str]:
    """Yield the lines that are not between `Warmup Begin` and `Warmup End`. Very long lines are
    left out unless they may be JSON.
    """
    warming = False
    for line in text.splitlines():
        warming = (warming or "Warmup Begin" in line) and "Warmup End" not in line
        if not warming and (len(line) < _LINE_LIMIT or line.lstrip().startswith("{")):
            yield line


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.lstrip().startswith("{"):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if (
            isinstance(record, dict)
            and "batch_size" in record
            and ("output_throughput" in record or "prefill_latency" in record)
        ):
            yield {ours: record[name] for name, ours in _JSON.items() if name in record}


def _batches(text: str) -> Iterator[dict[str, Any]]:
    """Yield the figures of each block of lines that begins with `batch size:`."""
    block: dict[str, Any] = {}
    for line in text.splitlines():
        labelled = _LABELLED.match(line)
        name = _LINES.get(labelled[1].lower(), "") if labelled else ""
        if name == "batch_size" and block:
            yield block
            block = {}
        if labelled and name and (block or name == "batch_size"):
            block[name] = _number(labelled[2])
    if len(block) > 1:
        yield block


def _stages(text: str) -> Iterator[dict[str, Any]]:
    """Yield the figures of each batch that `bench_one_batch` printed.

    A batch has a line for prefill, a line for the median of decode, and a last line that begins
    with `Total.`.
    """
    batch: dict[str, Any] = {}
    for line in text.splitlines():
        found = _STAGE.match(line)
        if not found or (found[1] == "Decode" and not found[2]):
            continue
        latency, rate = _number(found[3]), _number(found[4])
        match found[1]:
            case "Prefill":
                batch |= {"prefill_latency_s": latency, "input_tok_s": rate}
            case "Decode":
                batch |= {"decode_latency_s": latency, "output_tok_s": rate}
            case _:
                yield {**batch, "latency_s": latency, "overall_tok_s": rate}
                batch = {}


def _table(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the summary table at the end, for an output that has lost the lines before
    it.
    """
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "batch size" in map(str.lower, cells):
            heads = [_HEADS.get(cell.lower(), "") for cell in cells]
        elif heads and re.fullmatch(r"\d+", cells[0]):
            yield {name: _number(cell) for name, cell in zip(heads, cells, strict=False) if name}
        elif heads and not re.fullmatch(r"[\s|:-]+", line):
            heads = []


def _clean(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch with counts as integers, and with None for an accept length that was not
    measured.
    """
    found = {
        name: round(value) if name in _WHOLE and finite_number(value) is not None else value
        for name, value in batch.items()
    }
    length = finite_number(found.get("accept_len"))
    if "accept_len" in found:
        found["accept_len"] = length if length is not None and length > 0 else None
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return finite_number(value)
