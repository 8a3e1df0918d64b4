"""Owns the limits of a server that the load asked of it runs into: requests at once, captured
graphs, shares of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_knowledge.server_configuration import ERROR, WARNING, RuleFinding, ServerConfiguration

# In the order in which SGLang reads them: one name up to 0.5.19, one for each phase from 0.5.20
# (server_args.py).
_GRAPH_SIZES = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")
_FRACTION = "mem_fraction_static"


def apply_capacity_rules(asked: ServerConfiguration) -> Iterator[RuleFinding]:
    """What to tell about the limits of one configuration."""
    yield from _requests(asked)
    yield from _graphs(asked)
    yield from _fraction(asked)


def _requests(asked: ServerConfiguration) -> Iterator[RuleFinding]:
    limit = asked.number("max_running_requests")
    if limit is not None and 0 < limit < asked.concurrency:
        message = (
            f"{asked.concurrency} requests are kept in flight, but the server runs at most {limit} at once:"
            " the others wait in its queue"
        )
        hint = f"write max_running_requests: {asked.concurrency} or more, or measure at {limit} and below"
        yield RuleFinding("requests_capped", WARNING, "args.max_running_requests", message, hint)


def _graphs(asked: ServerConfiguration) -> Iterator[RuleFinding]:
    """Each attention rank decodes its own share of the requests that run at once."""
    ranks, running = (
        asked.size("dp_size"),
        min(asked.concurrency, asked.number("max_running_requests") or asked.concurrency),
    )
    share = -(-running // ranks)
    for name in _GRAPH_SIZES:
        largest = asked.number(name)
        if largest is not None and 0 < largest < share:
            each = f" of each of {ranks} data-parallel ranks" if ranks > 1 else ""
            message = (
                f"{running} requests run at once, but graphs are captured up to a batch{each} of {largest}:"
                " larger ones decode without graphs, which is another and slower path"
            )
            yield RuleFinding(
                "graphs_too_small",
                WARNING,
                f"args.{name}",
                message,
                f"write {name}: {share} or more",
            )


def _fraction(asked: ServerConfiguration) -> Iterator[RuleFinding]:
    try:
        fraction = float(asked.text(_FRACTION) or 0.5)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction < 1:
        message = f"`{_FRACTION}` is a share of GPU memory above 0 and below 1, not {asked.text(_FRACTION)[:20]}"
        hint = (
            f"write {_FRACTION}: {fraction / 100:g}"
            if 1 < fraction < 100
            else f"write {_FRACTION}: 0.85, or leave it out"
        )
        yield RuleFinding("bad_memory_fraction", ERROR, f"args.{_FRACTION}", message, hint)
