"""Runs `sglang.bench_serving` and reads its figures."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.load.programs import CLIENT_CORE, pinned
from benchmarks.side_by_side.figures import SHARES, TIMES, Figures
from benchmarks.side_by_side.servers import Load, Server, environment

LIMIT_S: Final = 600
# The same for each run, so that repeats differ by client and server and not by their arrivals.
SEED: Final = 1
ARRIVAL_TOLERANCE: Final = 0.2  # how far an arrival may be off, as a share of the whole time
STANDINS: Final = Path(__file__).parent / "standins"
# It imports the server's own modules, which look for a GPU without these settings.
ENVIRONMENT: Final = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "PYTHONPATH": str(STANDINS),
}
_SHARES: Final = dict(zip(SHARES, ("mean", "median", "p99"), strict=True))


class BenchServing:
    """A process that runs the command of bench_serving once for each run."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._output = folder / "theirs.jsonl"
        self._log = folder / "theirs.log"

    def run(self, server: Server, load: Load) -> Figures:
        """Run once, with a warm-up before. Raises RuntimeError if it failed or took longer than
        LIMIT_S.
        """
        self._output.unlink(missing_ok=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command_words(server, load, self._output)) + "\n")
            self._process.stdin.flush()
            reply = (
                self._process.stdout.readline()
                if select.select([self._process.stdout], [], [], LIMIT_S)[0]
                else ""
            )
        except BrokenPipeError:
            reply = ""
        if reply != "done\n":
            log = self._log.read_text(errors="replace")[-1500:]
            raise RuntimeError(
                f"sglang.bench_serving failed, or took longer than {LIMIT_S} s: {log}"
            )
        return _figures(json.loads(self._output.read_text(encoding="utf-8").splitlines()[-1]))


def command_words(server: Server, load: Load, output: Path) -> list[str]:
    """Return the words after `python -m sglang.bench_serving`.

    Raises MissingRequirement without its environment.
    """
    model = environment() / "tiny-model"
    found = [
        *("--backend", "sglang", "--base-url", server.url),
        *("--model", model, "--tokenizer", model, "--dataset-name", "random-ids"),
        *("--tokenize-prompt", "--random-input-len", load.input_tokens),
        *("--random-output-len", load.output_tokens, "--random-range-ratio", 1),
        *("--num-prompts", load.requests, "--seed", SEED, "--warmup-requests", load.warm_up),
        *("--disable-tqdm", "--output-file", output),
        *(
            ("--max-concurrency", load.concurrency)
            if load.concurrency
            else ("--request-rate", load.rate_per_s)
        ),
    ]
    return [*map(str, found)]


@contextmanager
def bench_serving(folder: Path) -> Iterator[BenchServing]:
    """Start it on the core for clients. Raises MissingRequirement without its environment."""
    argv = [str(environment() / "bin/python"), "-m", "repeated"]
    with (folder / "theirs.log").open("w") as log:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            **pinned(CLIENT_CORE),
        )
    try:
        yield BenchServing(process, folder)
    finally:
        process.kill()
        process.communicate()


def arrivals_s(load: Load, vocabulary: int, seed: int = SEED) -> tuple[float, ...]:
    """Return the seconds after the first request at which a run plans to send each one.

    From its seed, bench_serving draws lengths, then ids, then the gaps.
    """
    rng = np.random.RandomState(seed)
    rng.randint(load.input_tokens, load.input_tokens + 1, size=load.requests)
    rng.randint(load.output_tokens, load.output_tokens + 1, size=load.requests)
    rng.randint(0, vocabulary, size=load.requests)
    gaps_s = rng.exponential(1 / load.rate_per_s, size=load.requests - 1)
    return (0.0, *(float(offset_s) for offset_s in np.cumsum(gaps_s)))


def lateness_s(load: Load, vocabulary: int, received_ns: Sequence[int]) -> float:
    """Return how late its last request came, by the server's receive times.

    Raises RuntimeError if requests came at other times than the seed yields.
    """
    expected = arrivals_s(load, vocabulary)
    actual = [(at_ns - received_ns[0]) / 1e9 for at_ns in received_ns]
    if (
        max(abs(late - due) for late, due in zip(actual, expected, strict=True))
        > ARRIVAL_TOLERANCE * expected[-1]
    ):
        raise RuntimeError(
            "bench_serving draws its arrivals in another way than `arrivals_s`: the open loops"
            " are not comparable"
        )
    return actual[-1] - expected[-1]


def _figures(result: Mapping[str, Any]) -> Figures:
    counts = {
        "requests": result["completed"],
        "input_tokens": result["total_input_tokens"],
        "output_tokens": result["total_output_tokens"],
    }
    names = {time: f"{time}_latency" if time == "e2e" else time for time in TIMES}
    times = {
        f"{time}_ms_{share}": result[f"{_SHARES[share]}_{names[time]}_ms"]
        for time in TIMES
        for share in SHARES
    }
    return {
        name: float(value)
        for name, value in {**counts, "output_tok_s": result["output_throughput"], **times}.items()
    }
