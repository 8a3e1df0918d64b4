"""Measures what the load client costs and how exact it is, next to a minimal C client and SGLang's
Rust client.

    python -m benchmarks.load [--quick]     one table, and JSON merged into benchmarks/latest.json

The server records its own times. Server and clients are pinned to a core each, and every ratio is
of figures taken in the same run, one client after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.load import clients, programs
from benchmarks.load.clients import Load, Ours
from benchmarks.load.errors import Errors, compare
from benchmarks.load.programs import MissingRequirement, Pace

LATEST: Final = Path(__file__).resolve().parent.parent / "latest.json"
PACED: Final = Pace()
BURST: Final = Pace(0, 0)
SCENES: Final = {  # name → how the server responds, and the load
    "burst": (BURST, Load(32, 320, 2000)),
    "32": (PACED, Load(32, 128, 500)),
    "256": (PACED, Load(256, 1024, 250)),
}
COUNTS: Final = [Pace(10_000, 1_000, chunk, empty) for chunk in range(1, 9) for empty in (0, 3)]
REPEATS: Final = 3


@dataclass(slots=True)
class Results:
    """All figures. The keys are those of benchmarks/latest.json."""

    cpu_us_per_token: dict[str, dict[str, float]] = field(
        default_factory=lambda: {"ours": {}, "c": {}, "sglang_rust": {}}
    )
    decode_share: dict[str, float] = field(default_factory=dict)
    core_share: dict[str, float] = field(default_factory=dict)
    ttft_error_ms: dict[str, Mapping[str, float]] = field(default_factory=dict)
    tpot_error_ms: dict[str, Mapping[str, float]] = field(default_factory=dict)
    tok_s_error: dict[str, float] = field(default_factory=dict)
    dispatch_ms: dict[str, float] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)
    miscounted: int = 0
    counted: int = 0
    one_token_per_s: float = 0.0
    start_s: float = 0.0
    rss_mb: float = 0.0
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure and its limit, an upper one unless `at_least`."""

    name: str
    value: float
    unit: str
    limit: float = 0.0
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Whether the figure keeps its limit."""
        if not self.limit:
            return ""
        kept = self.value >= self.limit if self.at_least else self.value <= self.limit
        return f"{'>=' if self.at_least else '<='} {self.limit:g} {'kept' if kept else 'MISSED'}"


async def measure(folder: Path, *, quick: bool) -> Results:
    """Measure everything, one after the other. Raises MissingRequirement without a C compiler."""
    truth, floor = (programs.build(folder, name) for name in ("truth", "floor"))
    found = Results()
    async with clients.ours(folder) as ours:
        for name in SCENES:
            await measure_scene(found, name, ours, (truth, floor, folder), 1 if quick else REPEATS)
        await check_counts(found, ours, truth, folder)
        rates = []
        for _ in range(REPEATS):
            with programs.truth_server(truth, folder, BURST) as server:
                reply, _, _ = await ours.run(server, Load(16, 4000 if quick else 20_000, 1))
            rates.append(reply.requests_ok / reply.duration_s)
        found.one_token_per_s = statistics.median(rates)
        found.rss_mb = ours.rss_mb
    return found


async def measure_scene(
    found: Results, name: str, ours: Ours, places: tuple[Path, Path, Path], repeats: int
) -> None:
    """Run one load with each client in turn, several times; the medians count."""
    (truth, floor, folder), (pace, load) = places, SCENES[name]
    costs: dict[str, list[float]] = {"ours": [], "c": []}
    errors: list[Errors] = []
    shares: dict[str, list[float]] = {"client_decode_s": [], "client_cpu_s": []}
    delays_ms: list[float] = []
    for _ in range(repeats):
        with programs.truth_server(truth, folder, pace) as server:
            costs["c"].append(clients.run_c_client(floor, server, load).us_per_token)
        with programs.truth_server(truth, folder, pace) as server:
            reply, measured, found.start_s = await ours.run(server, load)
        costs["ours"].append(reply.metrics["client_cpu_us_per_token"])
        errors.append(compare(measured, server.records))
        delays_ms.append(1e3 * reply.metrics["dispatch_delay_s_p99"])
        for fact, values in shares.items():
            values.append(reply.facts[fact] / reply.duration_s)
        found.flags[name] = [*reply.facts["error_kinds"]]
        try:
            cost = clients.run_rust_client(clients.find_rust_python(), truth, folder, pace, load)
            costs.setdefault("sglang_rust", []).append(cost.us_per_token)
        except MissingRequirement as error:
            found.missing.append(f"{name}: {error}")
    for client, values in costs.items():
        found.cpu_us_per_token[client][name] = statistics.median(values)
    found.dispatch_ms[name] = statistics.median(delays_ms)
    found.decode_share[name], found.core_share[name] = (
        statistics.median(values) for values in shares.values()
    )
    if pace != BURST:
        found.ttft_error_ms[name] = {
            share: statistics.median(one.ttft_ms[share] for one in errors)
            for share in ("p50", "p99")
        }
        found.tpot_error_ms[name] = {
            share: statistics.median(one.tpot_ms[share] for one in errors)
            for share in ("p50", "p99")
        }
        found.tok_s_error[name] = statistics.median(one.tok_s for one in errors)
    found.miscounted += sum(one.miscounted for one in errors)
    found.counted += sum(one.requests for one in errors)


async def check_counts(found: Results, ours: Ours, truth: Path, folder: Path) -> None:
    """Count wrong token counts where a chunk is not a token: several in one, or none, over each
    API.
    """
    for pace in COUNTS:
        for api in ("chat", "completions", "generate"):
            with programs.truth_server(truth, folder, pace) as server:
                _, measured, _ = await ours.run(server, Load(4, 8, 50), api)
            errors = compare(measured, server.records)
            found.miscounted += errors.miscounted
            found.counted += errors.requests


def rows(found: Results) -> list[Row]:
    """Return the figures with their limits."""
    cpu, found_rows = found.cpu_us_per_token, []
    for name in SCENES:
        found_rows.append(Row(f"cpu {name}: ours", cpu["ours"][name], "us/token"))
        found_rows.append(Row(f"cpu {name}: minimal C client", cpu["c"][name], "us/token"))
        found_rows.append(
            Row(
                f"cpu {name}: ours / C",
                cpu["ours"][name] / cpu["c"][name],
                "x",
                0.0 if name == "burst" else 1.5,
            )
        )
        if name in cpu["sglang_rust"]:
            found_rows.append(
                Row(f"cpu {name}: SGLang's Rust client", cpu["sglang_rust"][name], "us/token")
            )
            found_rows.append(
                Row(
                    f"cpu {name}: ours / Rust",
                    cpu["ours"][name] / cpu["sglang_rust"][name],
                    "x",
                    0.7,
                )
            )
        found_rows.append(
            Row(
                f"share of a core {name}",
                found.core_share[name],
                "",
                0.0 if name == "burst" else 0.5,
            )
        )
        found_rows.append(Row(f"decoding / run {name}", found.decode_share[name], "", 0.1))
    for name in found.ttft_error_ms:
        found_rows.append(
            Row(f"TTFT error p50 {name}", found.ttft_error_ms[name]["p50"], "ms", 0.3)
        )
        found_rows.append(
            Row(f"TTFT error p99 {name}", found.ttft_error_ms[name]["p99"], "ms", 1.0)
        )
        found_rows.append(Row(f"dispatch delay p99 {name}", found.dispatch_ms[name], "ms"))
        found_rows.append(
            Row(f"time per token error p99 {name}", found.tpot_error_ms[name]["p99"], "ms", 0.05)
        )
        found_rows.append(Row(f"tok/s error {name}", 100 * found.tok_s_error[name], "%", 0.2))
    found_rows.append(Row(f"miscounted of {found.counted} requests", found.miscounted, "", 0.5))
    found_rows.append(Row("one-token requests", found.one_token_per_s, "/s", 8000, at_least=True))
    found_rows.append(Row("order to first request", found.start_s, "s", 0.5))
    found_rows.append(Row("resident memory of a shard", found.rss_mb, "MB"))
    return found_rows


def _print(table: Sequence[Row]) -> None:
    width = max(len(row.name) for row in table)
    for row in table:
        print(f"{row.name:{width}}  {row.value:10.4g} {row.unit:9} {row.verdict}".rstrip())


def main() -> int:
    """Measure and report; return 0 whatever the figures, 2 if a requirement is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each load once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        try:
            found = asyncio.run(measure(Path(folder), quick=options.quick))
        except MissingRequirement as error:
            print(f"benchmarks.load: {error}", file=sys.stderr)
            return 2
    _print(rows(found))
    for line in found.missing:
        print(f"NOT MEASURED: {line}")
    known: dict[str, Any] = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    LATEST.write_text(json.dumps({**known, "load": asdict(found)}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
