"""Checks the limits that a job sets for a server: running requests, batch sizes of CUDA graphs,
share of GPU memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_knowledge.server_configuration import ERROR, WARNING, RuleFinding, ServerConfiguration

# In the order in which SGLang reads them: one name up to 0.5.19, one per phase from 0.5.20
# (server_args.py).
_GRAPH_SIZES = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")
_FRACTION = "mem_fraction_static"


def apply_capacity_rules(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Yield the findings about the limits of one configuration."""
    yield from _requests(config)
    yield from _graphs(config)
    yield from _fraction(config)


def _requests(config: ServerConfiguration) -> Iterator[RuleFinding]:
    limit, concurrency = config.number("max_running_requests"), config.concurrency
    if limit is not None and 0 < limit < concurrency:
        message = (
            f"{concurrency} requests are kept in flight, but the server runs at most"
            f" {limit} at once: the others wait in its queue"
        )
        hint = (
            f"write max_running_requests: {concurrency} or more, or measure at a concurrency of"
            f" {limit} or less"
        )
        yield RuleFinding("requests_capped", WARNING, "args.max_running_requests", message, hint)


def _graphs(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Check that CUDA graphs cover the batch of each attention rank. Each rank decodes its own
    share of the requests.
    """
    ranks = config.size("dp_size")
    running = min(config.concurrency, config.number("max_running_requests") or config.concurrency)
    share = -(-running // ranks)
    for name in _GRAPH_SIZES:
        largest = config.number(name)
        if largest is not None and 0 < largest < share:
            each = f" of each of {ranks} data-parallel ranks" if ranks > 1 else ""
            message = (
                f"{running} requests run at once, but CUDA graphs are captured only up to a"
                f" batch{each} of {largest}: larger batches decode without graphs, which is slower"
            )
            yield RuleFinding(
                "graphs_too_small",
                WARNING,
                f"args.{name}",
                message,
                f"write {name}: {share} or more",
            )


def _fraction(config: ServerConfiguration) -> Iterator[RuleFinding]:
    try:
        fraction = float(config.text(_FRACTION) or 0.5)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction < 1:
        message = (
            f"`{_FRACTION}` is {config.text(_FRACTION)[:20]}, but it must be a share of GPU memory"
            " above 0 and below 1"
        )
        hint = (
            f"write {_FRACTION}: {fraction / 100:g}"
            if 1 < fraction < 100
            else f"write {_FRACTION}: 0.85, or leave it out"
        )
        yield RuleFinding("bad_memory_fraction", ERROR, f"args.{_FRACTION}", message, hint)
