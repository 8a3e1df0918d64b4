"""Measures `fleetctl diagnose` on long server logs: rate and memory, next to `wc` and `grep`.

One log consists of lines as servers write them: decode and prefill lines, answered requests, NCCL's
choices, progress bars, rare warnings. In the others no two lines have the same shape.

Rates are per second of CPU time, without the start of the command: what an empty log takes is
subtracted. `--against FOLDER` measures the source tree in FOLDER too, in turns with this one, and
prints how many times faster this one is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
LATEST = ROOT / "benchmarks/latest.json"
PATTERN_BYTES = 32 << 20  # size of the lines that a longer log repeats
COPY_BYTES = 1 << 20
DISTINCT_BYTES = 50_000_000
DISTINCT_COPIES = 8  # so that compiling the texts is a small part of the time
KINDS = ("free text", "requests", "NCCL calls")
ROUNDS = 3  # of each command; the fastest counts
SIZES = (16384, 32768, 114688, 229376, 458752, 917504, 1835008, 14680064)
# Half of what an idle machine reaches, so that they hold on a shared one
TARGET_MB_S = 130.0
DISTINCT_TARGETS_MB_S = {"free text": 400.0}
RSS_LIMIT_MB = 60.0
FILTER_RSS_LIMIT_MB = 80.0  # with Hyperscan and its compiled texts
FLEETCTL = "from fleet_controller.cli.main import main; raise SystemExit(main())"
COMPILE = """
import time
from fleet_knowledge.server_log.line_filter import load_line_filter
began_s = time.process_time()
load_line_filter()
print(time.process_time() - began_s)
"""


RISING = ("MB/s", "x")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `limit` 0: no limit; rates and factors must reach their limit, anything
    else must stay below it.
    """

    name: str
    value: float
    unit: str
    limit: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        return not self.limit or (
            self.value >= self.limit if self.unit in RISING else self.value < self.limit
        )


def log_stamp(second: int, rank: str = " TP0") -> str:
    """Return a time stamp in SGLang's format."""
    return f"[2026-06-20 {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}{rank}]"


def launch_lines() -> Iterator[str]:
    """Yield the log of a launch up to its ready line."""
    yield (
        f"{log_stamp(0, '')} server_args=ServerArgs(model_path='/models/large', tp_size=8,"
        " speculative_algorithm='EAGLE3')"
    )
    yield f"{log_stamp(5)} Load weight begin. avail mem=138.10 GB"
    yield from (
        f"\rLoading safetensors checkpoint shards: {n * 100 // 163:3d}% Completed"
        f" | {n}/163 [00:01<00:52,  3.1it/s]"
        for n in range(164)
    )
    yield (
        f"{log_stamp(60)} Load weight end. elapsed=54.81 s, type=LargeForCausalLM,"
        " avail mem=61.20 GB."
    )
    yield f"{log_stamp(62)} The server is fired up and ready to roll!"


def lines_of_a_second(dice: random.Random, second: int) -> Iterator[str]:
    """Yield about what a busy server with eight GPUs writes in a second."""
    running, tokens = dice.randint(24, 64), dice.randint(20_000, 90_000)
    for _ in range(dice.randint(1, 3)):
        accept, rate = dice.uniform(2.2, 3.4), dice.uniform(1800, 2600)
        yield (
            f"{log_stamp(second)} Decode batch, #running-req: {running}, #token: {tokens},"
            f" token usage: {tokens / 480_000:.2f}, accept len: {accept:.2f},"
            f" accept rate: {accept / 4:.2f}, cuda graph: True,"
            f" gen throughput (token/s): {rate:.2f}, #queue-req: 0"
        )
    for _ in range(dice.randint(2, 6)):
        yield (
            f"{log_stamp(second)} Prefill batch, #new-seq: {dice.randint(1, 3)},"
            f" #new-token: {dice.randint(30, 8192)}, #cached-token: {dice.randint(0, 512)},"
            f" token usage: 0.11, #running-req: {running}, #queue-req: {dice.randint(0, 4)}, "
        )
        client = f"10.0.0.{dice.randint(2, 9)}:{dice.randint(1024, 65535)}"
        yield f'{log_stamp(second, "")} INFO:     {client} - "POST /generate HTTP/1.1" 200 OK'
    for device in range(8):
        size = dice.choice(SIZES)
        protocol, channels = ("LL", 7) if size < 100_000 else ("SIMPLE", 15)
        place = f"node-1:{166760 + device}:{167760 + device} [{device}] NCCL INFO"
        yield (
            f"{place} AllReduce: {size} Bytes -> Algo RING proto {protocol}"
            f" channel{{Lo..Hi}}={{0..{channels}}}"
        )
    if second % 10 == 0:
        client = f"10.0.0.1:{dice.randint(1024, 65535)}"
        yield f'{log_stamp(second, "")} INFO:     {client} - "GET /health HTTP/1.1" 200 OK'
    if second % 600 == 0:
        yield (
            f"{log_stamp(second)} KV cache pool is full. Retract requests. #retracted_reqs: 1,"
            " #new_token_ratio: 0.62 -> 0.91"
        )


def distinct_lines(kind: str, dice: random.Random) -> Iterator[str]:
    """Yield lines of which no two have the same shape: random words, requests with their prompts,
    NCCL calls.
    """
    words = [
        "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9)))
        for _ in range(5000)
    ]
    for number in itertools.count():
        second, name = log_stamp(number // 50), f"{dice.getrandbits(128):032x}"
        if kind == "requests":
            prompt = " ".join(dice.choices(words, k=60))
            sampling = f"sampling_params={{'max_new_tokens': {number % 512}}}"
            request = f"obj=GenerateReqInput(rid='{name}', text='{prompt}', {sampling})"
            answer = " ".join(dice.choices(words, k=80))
            yield f"{second} Receive: {request}"
            yield f"{second} Finish: {request}, out={{'text': '{answer}'}}"
        elif kind == "NCCL calls":
            rank = number % 8
            yield (
                f"node-1:{4000 + rank}:{5000 + rank} [{rank}] NCCL INFO AllReduce:"
                f" opCount {number // 8:x} sendbuff 0x7f{dice.getrandbits(40):010x}"
                f" recvbuff 0x7f{dice.getrandbits(40):010x} count {dice.choice(SIZES)} datatype 9"
                f" op 0 root 0 comm 0x{dice.getrandbits(32):08x} [nranks=8]"
                f" stream 0x{dice.getrandbits(32):08x}"
            )
        else:
            yield f"{second} {' '.join(dice.choices(words, k=12))}"


def write_distinct_log(path: Path, kind: str, copies: int) -> None:
    """Write a log in which no two lines of a copy have the same shape."""
    with path.open("w") as stream:
        for line in distinct_lines(kind, random.Random(1)):
            stream.write(f"{line}\n")
            if stream.tell() > DISTINCT_BYTES:
                break
    with path.open("r+b") as file:
        first = file.read()
        file.writelines([first] * (copies - 1))


def write_log(path: Path, size_bytes: int) -> None:
    """Write a log of about that size: a launch, then repeated work.

    It keeps little in memory, because a child's resident memory starts as its parent's.
    """
    dice = random.Random(1)  # the same log each time
    with path.open("w+b") as stream:
        stream.writelines(f"{line}\n".encode() for line in launch_lines())
        first, second = stream.tell(), 100
        while stream.tell() < min(PATTERN_BYTES, size_bytes):
            stream.writelines(f"{line}\n".encode() for line in lines_of_a_second(dice, second))
            second += 1
        last = stream.tell()
        while stream.tell() < size_bytes:
            at = stream.tell()
            stream.seek(first + (at - last) % (last - first))
            piece = stream.read(min(COPY_BYTES, last - stream.tell()))
            stream.seek(at)
            stream.write(piece)


@dataclass(frozen=True, slots=True)
class Run:
    """What a command took. `rss_mb` is the largest resident memory of any child so far."""

    wall_s: float
    cpu_s: float
    rss_mb: float
    output: str


def run(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command. Raises RuntimeError if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    variables = {**os.environ, "LC_ALL": "C", **(environment or {})}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=variables)
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {done.stderr}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall_s, cpu_s, after.ru_maxrss / 1024, done.stdout)


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree to measure."""

    root: Path

    def diagnose(self, log: Path) -> Run:
        """Run `fleetctl diagnose` of this tree on a log."""
        packages = ("protos", "knowledge", "agent", "controller")
        path = ":".join(str(self.root / package) for package in packages)
        argv = [sys.executable, "-P", "-c", FLEETCTL, "diagnose", str(log), "--json"]
        return run(argv, {"PYTHONPATH": path})


def rates(trees: Sequence[Tree], logs: Sequence[Path]) -> tuple[list[float], Run]:
    """Return the MB/s of each tree on its log, measured in turns, and a run of the first tree."""
    empty = logs[0].with_name("empty.log")
    empty.touch()
    runs: list[list[Run]] = [[] for _ in trees]
    for _ in range(ROUNDS):
        for tree, log, own in zip(trees, logs, runs, strict=True):
            own.append(tree.diagnose(log))
    starts = [min(tree.diagnose(empty).cpu_s for _ in range(ROUNDS)) for tree in trees]
    return [
        log.stat().st_size / 1e6 / (min(run.cpu_s for run in own) - start_s)
        for log, own, start_s in zip(logs, runs, starts, strict=True)
    ], runs[0][-1]


def repeated_figures(log: Path, trees: Sequence[Tree]) -> list[Figure]:
    """Return all rows for a log of few shapes.

    Raises RuntimeError if the diagnosis misses something that the log contains.
    """
    size_mb = log.stat().st_size / 1e6
    wc_s = run(["wc", "-l", str(log)]).wall_s
    grep_s = run(["grep", "-c", "gen throughput", str(log)]).wall_s
    mb_s, last = rates(trees, [log] * len(trees))
    document = json.loads(last.output)
    if (
        document["state"] != "serving"
        or not document["decode"]["lines"]
        or not document["nccl"]["tuning"]["rows"]
    ):
        raise RuntimeError(f"diagnose misread the log: {document['state']}")
    return [
        Figure(f"fleetctl diagnose, {size_mb:.0f} MB log", mb_s[0], "MB/s", TARGET_MB_S),
        *(Figure("  times the other tree", mb_s[0] / other, "x") for other in mb_s[1:]),
        Figure("  by the clock, start of the command included", size_mb / last.wall_s, "MB/s"),
        Figure("  largest resident memory", last.rss_mb, "MB", RSS_LIMIT_MB),
        Figure("  floor: wc -l of the same file", size_mb / wc_s, "MB/s"),
        Figure("  floor: grep -c of one kind of line", size_mb / grep_s, "MB/s"),
    ]


def distinct_figures(folder: Path, trees: Sequence[Tree]) -> list[Figure]:
    """Return the rows for logs in which no two lines have the same shape."""
    rows: list[Figure] = []
    log, short_log = folder / "distinct.log", folder / "short.log"
    for kind in KINDS:
        write_distinct_log(log, kind, DISTINCT_COPIES)
        write_distinct_log(short_log, kind, 1)
        mb_s, last = rates(trees, [log, *[short_log] * (len(trees) - 1)])
        limit = DISTINCT_TARGETS_MB_S.get(kind, 0.0)
        rows.append(Figure(f"  all lines distinct: {kind}", mb_s[0], "MB/s", limit))
        factor = 30.0 if kind == "free text" else 0.0
        rows += [
            Figure("  times the other tree", mb_s[0] / other, "x", factor) for other in mb_s[1:]
        ]
    return [*rows, Figure("  largest resident memory", last.rss_mb, "MB", FILTER_RSS_LIMIT_MB)]


def start_figures() -> list[Figure]:
    """Return what the line filter costs a log with many shapes once, and what starts without it."""
    compile_s = min(float(run([sys.executable, "-c", COMPILE]).output) for _ in range(ROUNDS))
    rows = [Figure("importing Hyperscan and compiling all texts", compile_s, "s", 0.3)]
    for name in ("fleetctl", "fleet-agent"):
        cpu_s = min(run([str(SCRIPTS / name), "--help"]).cpu_s for _ in range(ROUNDS))
        rows.append(Figure(f"  {name} --help, which loads neither", cpu_s, "s"))
    return rows


def report(figures: Sequence[Figure], path: Path) -> None:
    """Print the table and store its rows, next to those of other benchmarks, in the file."""
    for figure in figures:
        sign = "≥" if figure.unit in RISING else "<"
        limit = (
            f"{sign} {figure.limit:g} {figure.unit}" + ("" if figure.holds else "  MISSED")
            if figure.limit
            else ""
        )
        print(f"{figure.name:56} {figure.value:8.2f} {figure.unit:4} {limit}")
    document = json.loads(path.read_text()) if path.exists() else {}
    rows = [asdict(figure) | {"holds": figure.holds, "benchmark": "diagnose"} for figure in figures]
    document["figures"] = [
        row for row in document.get("figures", ()) if row.get("benchmark") != "diagnose"
    ] + rows
    path.write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    """Measure and report; return 1 if a limit is missed."""
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parse.add_argument(
        "--megabytes", type=int, default=1000, help="size of the log (default: 1000)"
    )
    parse.add_argument("--output", type=Path, default=LATEST)
    parse.add_argument(
        "--against", type=Path, metavar="FOLDER", help="a source tree to compare this one with"
    )
    options = parse.parse_args()
    trees = [Tree(ROOT), *([Tree(options.against.absolute())] if options.against else [])]
    with tempfile.TemporaryDirectory(prefix="benchfleet-bench-") as folder:
        log = Path(folder) / "server.log"
        write_log(log, options.megabytes * 1_000_000)
        figures = [
            *repeated_figures(log, trees),
            *distinct_figures(Path(folder), trees),
            *start_figures(),
        ]
    report(figures, options.output)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
