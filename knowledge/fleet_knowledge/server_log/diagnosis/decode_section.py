"""Builds the decode section of a diagnosis, and the warnings that follow from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet_knowledge.server_log.diagnosis.decode_rates import LoggedRates, RankRates
from fleet_knowledge.server_log.diagnosis.log_diagnosis import LogWarning
from fleet_knowledge.server_log.parsing.log_lines import Rank

_CACHED_SHARE = 0.5  # of prompt tokens: above it the prefill rate says little about prefill
_EAGER_SHARE = 0.02  # of decode lines
_NO_DRAFT_ACCEPTED = 1.05  # tokens per verify step; 1 is the bonus token alone


def build_decode_section(
    rates: LoggedRates, samples: Sequence[Mapping[str, Any]], excluded: int
) -> dict[str, Any]:
    """Return what the batch lines say about the server as a whole. Return an empty mapping if the
    log has no batch lines.

    Rates are tokens per second, summed over DP ranks.
    """
    if not rates.ranks:
        return (
            {"lines": 0, "prefill_lines": 0, "excluded_before_ready": excluded} if excluded else {}
        )
    chosen = one_of_each_group(rates.ranks)
    ranks = list(chosen.values())
    new, cached = sum(rank.new_tokens for rank in ranks), sum(rank.cached_tokens for rank in ranks)
    throughputs = [mean for rank in ranks if (mean := rank.throughput.mean) is not None]
    with_graph, without = _graph_counts(rates)
    return {
        "lines": sum(rank.decode_lines for rank in rates.ranks.values()),
        "prefill_lines": sum(rank.prefill_lines for rank in rates.ranks.values()),
        "excluded_before_ready": excluded,
        "dropped_lines": rates.dropped,
        "dropped": list(rates.drops),
        "dp_ranks": sorted({rank.dp for _, rank in chosen if rank.dp >= 0}),
        "roles": sorted(rates.roles - {""}),
        "total_gen_throughput": sum(throughputs) if throughputs else None,
        "steady_gen_throughput_mean": sum(throughputs) / len(throughputs) if throughputs else None,
        "gen_throughput_max": _sum_over(
            ranks, lambda rank: rank.throughput.maximum if rank.throughput.count else None
        ),
        "total_running": _sum_over(
            ranks, lambda rank: rank.running.last if rank.running.count else None
        ),
        "running_mean": _sum_over(ranks, lambda rank: rank.running.mean),
        "running_max": _sum_over(
            ranks, lambda rank: rank.running.maximum if rank.running.count else None
        ),
        "queue_max": _sum_over(ranks, lambda rank: rank.queue_max),
        "token_usage_max": max(
            (rank.usage_max for rank in ranks if rank.usage_max is not None), default=None
        ),
        **rates.acceptance.to_json(),
        "cuda_graph_share": with_graph / (with_graph + without) if with_graph + without else None,
        "graph_kinds": sorted({kind for kind, _ in rates.graphs}),
        "first_bs_without_graph": _to_int(rates.smallest_without_graph),
        "largest_bs_with_graph": _to_int(rates.largest_with_graph),
        "new_tokens": int(new),
        "cached_tokens": int(cached),
        "cache_hit_rate": cached / (new + cached) if new + cached else None,
        "input_throughput_mean": _sum_over(ranks, lambda rank: rank.input_throughput.mean),
        "ranks": [
            _rank_json(source, rank, figures) for (source, rank), figures in sorted(chosen.items())
        ][:64],
        "samples": list(samples),
    }


def one_of_each_group(
    ranks: Mapping[tuple[str, Rank], RankRates],
) -> dict[tuple[str, Rank], RankRates]:
    """Return the ranks that count: those of the lowest pipeline stage and TP rank of each DP rank.

    The other ranks report the same tokens again.
    """
    first: dict[int, tuple[int, int]] = {}
    for _, rank in ranks:
        first[rank.dp] = min(first.get(rank.dp, (rank.pp, rank.tp)), (rank.pp, rank.tp))
    return {
        (source, rank): figures
        for (source, rank), figures in ranks.items()
        if (rank.pp, rank.tp) == first[rank.dp]
    }


def decode_warnings(decode: Mapping[str, Any], speculative: bool) -> list[LogWarning]:
    """Return the warnings that follow from the decode section."""
    warned = []
    hit = decode.get("cache_hit_rate")
    if hit is not None and hit >= _CACHED_SHARE:
        share = "almost all" if hit > 0.9 else f"{hit:.0%} of the"
        warned.append(
            LogWarning(
                "prefix_cache_hit",
                (
                    f"{share} prompt tokens came from the prefix cache: TTFT and input throughput "
                    f"are not prefill performance"
                ),
                (
                    "Call /flush_cache before each run, use a new seed, or set "
                    "SGLANG_RADIX_FORCE_MISS=1 or --disable-radix-cache on all hosts."
                ),
                details={"cache_hit_rate": hit},
            )
        )
    warned += _eager_decode_warnings(decode)
    length = decode.get("accept_len_mean")
    if length is not None and length < _NO_DRAFT_ACCEPTED:
        warned.append(
            LogWarning(
                "spec_ineffective",
                f"speculation accepts no draft tokens: accept length {length:.2f}",
                (
                    "The draft does not fit: EAGLE was set for an EAGLE-3 draft, the draft belongs "
                    "to another model, or its weights are random."
                ),
                details={"accept_len_mean": length, "speculative": speculative},
            )
        )
    return warned


def _eager_decode_warnings(decode: Mapping[str, Any]) -> list[LogWarning]:
    share, size = decode.get("cuda_graph_share"), decode.get("first_bs_without_graph")
    if share is None or share > 1 - _EAGER_SHARE or decode["graph_kinds"] == ["cpu"]:
        return []
    eager_share = 1 - share
    message = f"decode ran without CUDA graphs in {eager_share:.0%} of the decode lines" + (
        f", from {size} requests" if size is not None else ""
    )
    hint = (
        "Raise --cuda-graph-max-bs, or lower the concurrency. The default of --cuda-graph-max-bs "
        "depends on GPU memory and TP, so hosts may differ."
    )
    return [
        LogWarning(
            "eager_decode",
            message,
            hint,
            details={"cuda_graph_share": share, "first_bs_without_graph": size},
        )
    ]


def _graph_counts(rates: LoggedRates) -> tuple[int, int]:
    return tuple(
        sum(count for (_, graph), count in rates.graphs.items() if graph is wanted)
        for wanted in (True, False)
    )  # type: ignore[return-value]


def _sum_over(
    ranks: Sequence[RankRates], figure: Callable[[RankRates], float | None]
) -> float | None:
    values = [value for rank in ranks if (value := figure(rank)) is not None]
    return sum(values) if values else None


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _rank_json(source: str, rank: Rank, figures: RankRates) -> dict[str, Any]:
    return {
        "source": source or None,
        "rank": str(rank) or None,
        "lines": figures.decode_lines,
        "gen_throughput_mean": figures.throughput.mean,
        "running_mean": figures.running.mean,
        "prefill_lines": figures.prefill_lines,
    }
