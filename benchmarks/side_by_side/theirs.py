"""Owns how `sglang.bench_serving` is run and what it said. Measures nothing itself, and judges nobody."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.load.programs import CLIENT_CORE, pinned
from benchmarks.side_by_side.figures import SHARES, TIMES, Figures
from benchmarks.side_by_side.servers import Load, Server, environment

LIMIT_S: Final = 600
SEED: Final = 1  # the same for each run: what its repeats differ by is the client and the server, and no other arrivals
MOST_LATE: Final = 0.2  # of the whole time, that an arrival may be off
STANDINS: Final = Path(__file__).parent / "standins"
# It imports the server's own modules, which look for a GPU unless they are told otherwise.
ENVIRONMENT: Final = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": str(STANDINS)}
_SHARES: Final = dict(zip(SHARES, ("mean", "median", "p99"), strict=True))


def run(server: Server, load: Load, folder: Path) -> Figures:
    """One run, with a warm-up of its own before it. Raises Missing without its environment, RuntimeError when it failed."""
    home, told = environment(), folder / "theirs.jsonl"
    told.unlink(missing_ok=True)
    words = [
        home / "bin/python", "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", server.url, "--model", home / "tiny-model",
        "--tokenizer", home / "tiny-model", "--dataset-name", "random-ids", "--tokenize-prompt", "--random-input-len", load.input_tokens,
        "--random-output-len", load.output_tokens, "--random-range-ratio", 1, "--num-prompts", load.requests, "--seed", SEED,
        "--warmup-requests", load.warm_up, "--disable-tqdm", "--output-file", told,
        *(("--max-concurrency", load.concurrency) if load.concurrency else ("--request-rate", load.rate_per_s)),
    ]  # fmt: skip
    done = subprocess.run(
        [*map(str, words)], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=LIMIT_S, **pinned(CLIENT_CORE)
    )
    if done.returncode or not told.exists():
        raise RuntimeError(f"sglang.bench_serving ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return _figures(json.loads(told.read_text().splitlines()[-1]))


def arrivals_s(load: Load, vocabulary: int, seed: int = SEED) -> tuple[float, ...]:
    """Seconds after the first request at which a run means to send each one: from its seed it draws lengths, then ids, then the gaps."""
    drawing = np.random.RandomState(seed)
    drawing.randint(load.input_tokens, load.input_tokens + 1, size=load.requests)
    drawing.randint(load.output_tokens, load.output_tokens + 1, size=load.requests)
    drawing.randint(0, vocabulary, size=load.requests)
    gaps_s = drawing.exponential(1 / load.rate_per_s, size=load.requests - 1)
    return (0.0, *(float(offset_s) for offset_s in np.cumsum(gaps_s)))


def lateness_s(load: Load, vocabulary: int, received_ns: Sequence[int]) -> float:
    """How late its last request came, by when the server had each. Raises RuntimeError when it came at other times than it should draw."""
    meant, came = arrivals_s(load, vocabulary), [(at_ns - received_ns[0]) / 1e9 for at_ns in received_ns]
    if max(abs(late - due) for late, due in zip(came, meant, strict=True)) > MOST_LATE * meant[-1]:
        raise RuntimeError("bench_serving draws its arrivals otherwise than `arrivals_s` knows: the open loops are not alike")
    return came[-1] - meant[-1]


def _figures(said: Mapping[str, Any]) -> Figures:
    counts = {"requests": said["completed"], "input_tokens": said["total_input_tokens"], "output_tokens": said["total_output_tokens"]}
    names = {time: f"{time}_latency" if time == "e2e" else time for time in TIMES}
    times = {f"{time}_ms_{share}": said[f"{_SHARES[share]}_{names[time]}_ms"] for time in TIMES for share in SHARES}
    return {name: float(value) for name, value in {**counts, "output_tok_s": said["output_throughput"], **times}.items()}

