"""Compares what our load client and `sglang.bench_serving` measure on the same server process, in
closed and open loops.

    python -m benchmarks.side_by_side [--engine simulated|real] [--repeats 5] [--json FILE]

It prints one table, then one JSON object. The prompts are random token ids. Both clients run each
load in turns (ours, theirs, theirs, ours, ...), then again on a C server that records its own times
and responds about as fast: that shows what a client adds by itself. Servers and clients have a core
each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.load import programs
from benchmarks.load.programs import MissingRequirement, Pace
from benchmarks.side_by_side import ours, servers, theirs, verdicts
from benchmarks.side_by_side.figures import COUNTS, NAMES, RATE, Figures
from benchmarks.side_by_side.servers import Load, Server
from benchmarks.side_by_side.verdicts import Control, Row

ENGINES: Final = {"simulated": servers.simulated, "real": servers.real}
LOADS: Final = {
    "simulated": (
        Load("closed", requests=64, input_tokens=64, output_tokens=32, concurrency=8),
        Load("open", requests=80, input_tokens=64, output_tokens=32, rate_per_s=10.0),
    ),
    "real": (
        Load("closed", requests=32, input_tokens=64, output_tokens=16, concurrency=4, warm_up=4),
        Load("open", requests=24, input_tokens=64, output_tokens=16, rate_per_s=2.0, warm_up=4),
    ),
}
HEAD: Final = (
    "ours",
    "ours, their way",
    "bench_serving",
    "difference",
    "noise",
    "in the control",
    "verdict",
)


@dataclass(slots=True)
class RepeatedFigures:
    """The figures of one load, run by run; ours as (by our definitions, by theirs)."""

    ours: list[tuple[Figures, Figures]] = field(default_factory=list)
    theirs: list[Figures] = field(default_factory=list)
    info_s: list[float] = field(default_factory=list)  # of GET /server_info before each repeat


@dataclass(frozen=True, slots=True)
class Clients:
    """Both clients, ready."""

    ours: ours.LoadClient
    theirs: theirs.BenchServing


@dataclass(frozen=True, slots=True)
class LoadComparison:
    """The comparison for one load.

    `info_s`: the time of GET /server_info. `late_s`: how late bench_serving's last request was on
    the truth server in an open loop.
    """

    load: Load
    rows: Sequence[Row]
    info_s: float
    late_s: float


async def run_in_turns(
    server: Server, load: Load, clients: Clients, repeats: int
) -> RepeatedFigures:
    """Run both clients on one server, in turns.

    The first run of each does not count, because client and server are new to the load.
    """
    await clients.ours.run(server, load, 0, 0.0)
    await asyncio.to_thread(clients.theirs.run, server, load)
    found = RepeatedFigures()
    for number in range(1, repeats + 1):
        after_s = server.info_s()
        turns = ("ours", "theirs") if number % 2 else ("theirs", "ours")
        for turn in turns:
            if turn == "ours":
                found.ours.append(await clients.ours.run(server, load, number, after_s))
            else:
                found.theirs.append(await asyncio.to_thread(clients.theirs.run, server, load))
        found.info_s.append(after_s)
    return found


async def run_controls(
    program: Path, load: Load, pace: Pace, clients: Clients, repeats: int, folder: Path
) -> tuple[Mapping[str, Control], Sequence[float]]:
    """Return how the clients differ on the truth server, by figure.

    For an open loop, also return how late bench_serving's last request was in each run.
    """
    ours_figures: list[tuple[Figures, Figures]] = []
    theirs_figures: list[tuple[Figures, Figures]] = []
    late_s: list[float] = []
    for number in range(1, repeats + 1):
        for turn in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            with servers.truth_server(program, folder, pace) as (server, truth):
                if turn == "ours":
                    _, measured = await clients.ours.run(server, load, number, 0.0)
                else:
                    measured = await asyncio.to_thread(clients.theirs.run, server, load)
            records = servers.records_of_run(truth, load)
            (ours_figures if turn == "ours" else theirs_figures).append(
                (measured, servers.true_figures(records, load))
            )
            if turn == "theirs" and not load.concurrency:
                late_s.append(
                    theirs.lateness_s(load, server.vocabulary, [one.received_ns for one in records])
                )
    return {
        name: verdicts.control(name, ours_figures, theirs_figures)
        for name in NAMES
        if name not in COUNTS
    }, late_s


async def measure(
    server: Server, loads: Sequence[Load], repeats: int, folder: Path
) -> dict[str, LoadComparison]:
    """Return the comparison of each load. Raises MissingRequirement without SGLang or a C
    compiler.
    """
    program, found = programs.build(folder, "truth"), {}
    async with ours.client(folder) as client:
        with theirs.bench_serving(folder) as other:
            clients = Clients(client, other)
            for load in loads:
                found[load.name] = await compare_load(
                    server, load, clients, repeats, (program, folder)
                )
    return found


async def compare_load(
    server: Server, load: Load, clients: Clients, repeats: int, places: tuple[Path, Path]
) -> LoadComparison:
    """Compare the clients under one load, on the server and on the truth server.

    `places`: the truth server's program, and a folder.
    """
    measured = await run_in_turns(server, load, clients, repeats)
    middle = [
        statistics.median(figures[name] for _, figures in measured.ours)
        for name in ("ttft_ms_p50", "tpot_ms_p50")
    ]
    known, late_s = await run_controls(
        places[0], load, Pace(*(round(1e3 * ms) for ms in middle)), clients, repeats, places[1]
    )
    rows = verdicts.rows(measured.ours, measured.theirs, known)
    return LoadComparison(
        load, rows, statistics.median(measured.info_s), statistics.median(late_s) if late_s else 0.0
    )


def table(engine: str, found: Sequence[LoadComparison], repeats: int) -> str:
    """Return the figures as text."""
    lines = []
    for one in found:
        load = one.load
        how = (
            f"{load.concurrency} at a time"
            if load.concurrency
            else f"{load.rate_per_s:g}/s, Poisson"
        )
        what = f"{load.requests} requests of {load.input_tokens} + {load.output_tokens} tokens"
        lines.append(
            f"{engine} engine, {load.name} loop: {how}, {what}, medians of {repeats} runs each"
        )
        lines.append("".join([f"{'':14}", *(f"{head:>16}" for head in HEAD[:-1]), "  ", HEAD[-1]]))
        lines += [_line(row) for row in one.rows]
        lines.append(
            f"GET /server_info took {1e3 * one.info_s:.1f} ms, which bench_serving includes in its"
            " duration"
        )
        known = next(row.control for row in one.rows if row.name == "ttft_ms_p50")
        if known:
            errors = f"ours {known.ours_error:+.2f} ms, bench_serving {known.theirs_error:+.2f} ms"
            lines.append(f"TTFT p50 against the truth server's own times: {errors}")
        if not load.concurrency:
            lines.append(
                f"bench_serving's last request came {1e3 * one.late_s:.0f} ms after it was due"
                " (on the truth server)"
            )
        lines.append("")
    return "\n".join(lines)


def _line(row: Row) -> str:
    own = "–" if math.isnan(row.ours) else f"{row.ours:.3f}"
    known = (
        ""
        if row.control is None
        else format(row.control.difference, "+.2%" if row.name == RATE else "+.3f")
    )
    shown = (
        own,
        f"{row.ours_by_theirs:.3f}",
        f"{row.theirs:.3f}",
        f"{row.difference:+.3f}",
        f"{row.noise:.3f}",
        known,
    )
    return "".join([f"{row.name:14}", *(f"{value:>16}" for value in shown), "  ", row.verdict])


def as_json(engine: str, found: Sequence[LoadComparison]) -> dict[str, Any]:
    """Return the figures as a JSON object, marked if simulated; a missing figure is null."""
    loads = {}
    for one in found:
        figures = {
            row.name: {
                **asdict(row),
                "ours": None if math.isnan(row.ours) else row.ours,
                "difference": row.difference,
            }
            for row in one.rows
        }
        loads[one.load.name] = {
            "load": asdict(one.load),
            "server_info_s": one.info_s,
            "last_late_s": one.late_s,
            "figures": figures,
        }
    return {"engine": engine, "simulated": engine == "simulated", "loads": loads}


def main() -> int:
    """Measure and report.

    Return 0 if both clients agree or every difference is explained, 1 if one is not, 2 if a
    requirement is missing.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=sorted(ENGINES), default="simulated")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each client and load")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there too")
    options = parser.parse_args()
    loads = LOADS[options.engine]
    with tempfile.TemporaryDirectory(prefix="beside-") as folder:
        try:
            with ENGINES[options.engine](Path(folder)) as server:
                found = asyncio.run(measure(server, loads, options.repeats, Path(folder)))
        except MissingRequirement as error:
            print(f"benchmarks.side_by_side: {error}", file=sys.stderr)
            return 2
    print(table(options.engine, list(found.values()), options.repeats))
    report = json.dumps(as_json(options.engine, list(found.values())))
    print(report)
    if options.json:
        options.json.write_text(report + "\n")
    return int(
        any(row.verdict == verdicts.UNEXPLAINED for one in found.values() for row in one.rows)
    )


if __name__ == "__main__":
    sys.exit(main())
