"""Computes the metrics of one run, and the facts that the gates check, from the run's columns. The
definitions are in docs/metrics.md.

Wall time is converted to model time only here: metrics and `duration_s` are in model time, facts
are in wall time. Only the load process imports this module.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fleet_agent.load.client.request_record import RequestRecord, Response
from fleet_agent.load.results import arrow_tables
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.results.percentiles import percentile, percentiles, stream_percentiles
from fleet_agent.load.results.request_columns import DIGEST_CHARACTERS, NOT_REPORTED, Columns
from fleet_agent.load.workload.slot_schedule import all_due_ns
from fleet_protos import metric_names as names
from fleet_protos.trial_types import Workload
from fleet_protos.workload_rules import is_open_loop

# the first tokens of two salts may be equal by chance: so many cached tokens do not count as a hit
SALT_TOKENS: Final = 4
MIN_SHARE_REQUESTS: Final = 20
_FAILED: Final = "error_kind"


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Holds the conditions under which a run was measured.

    `template_tokens` is the number of prompt tokens of the chat template, which every request
    shares and the server may cache; None if the probes reported no number.
    """

    workload: Workload
    time_scale: float = 1.0
    template_tokens: int | None = None
    lags_ns: tuple[int, ...] = ()
    speculation: bool = False  # the variant requests it
    # share of the prompt tokens that repeat an earlier request's beginning by plan; None: no plan
    planned_cached_ratio: float | None = None
    cpu_s: float = 0.0  # of the shards, while they ran
    decode_s: float = 0.0  # of the shards, afterwards


@dataclass(frozen=True, slots=True)
class _Rows:
    """Holds requests as an Arrow batch of `request_columns.SCALARS`, and the times at which the
    latency of each request begins and ends.

    In an open loop, the latency begins when the request was due. In a closed loop requests have no
    due time, so it begins when the request was sent. The time between the previous answer and the
    sending is then the dispatch delay of the client.
    """

    table: Any
    begin_ns: Any
    end_ns: Any  # of the last byte, or when it was sent if there was no answer

    @staticmethod
    def from_columns(columns: Columns, *, is_open: bool) -> _Rows:
        table = arrow_tables.build_scalar_batch(columns)
        last, sent, due = (table.column(name) for name in ("last_ns", "sent_ns", "intended_ns"))
        return _Rows(
            table,
            due if is_open else pc.max_element_wise(sent, due),
            pc.max_element_wise(last, sent, due),
        )

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, name: str) -> Any:
        return self.table.column(name)

    def where(self, mask: Any) -> _Rows:
        """Return the rows for which the mask is true. Nothing is copied if the mask is true for all
        rows.
        """
        return self if pc.all(mask, min_count=0).as_py() else self._filtered(mask)

    def _filtered(self, mask: Any) -> _Rows:
        return _Rows(self.table.filter(mask), self.begin_ns.filter(mask), self.end_ns.filter(mask))

    def reported(self, name: str) -> Any:
        """Return the counts of a column, with 0 where the server reported no count."""
        return pc.max_element_wise(self[name], 0)

    @property
    def e2e_ns(self) -> Any:
        return pc.subtract(self.end_ns, self.begin_ns)

    @property
    def ttft_ns(self) -> Any:
        """Return the time to first token of each row. It is valid only for rows with output."""
        return pc.subtract(self["first_output_ns"], self.begin_ns)

    @property
    def has_output(self) -> Any:
        return pc.not_equal(self["first_output_ns"], 0)

    @property
    def has_tpot(self) -> Any:
        return pc.and_(pc.greater(self["completion_tokens"], 1), self.has_output)

    @property
    def tpot_ns(self) -> Any:
        """Return the time per output token of each row. It is valid only where
        `has_tpot` is true.
        """
        rest_ns = pc.subtract(self["last_output_ns"], self["first_output_ns"]).cast(pa.float64())
        return pc.divide(rest_ns, pc.subtract(self["completion_tokens"], 1).cast(pa.float64()))


def summarise(columns: Columns, conditions: RunConditions) -> LoadReply:
    """Return the results of a run: metrics over the requests that succeeded, and facts over all
    requests. The metrics are empty if no request succeeded.

    Raises OSError if chunks cannot be read from their files.
    """
    rows = _Rows.from_columns(columns, is_open=is_open_loop(conditions.workload))
    good = rows.where(pc.equal(rows[_FAILED], 0))
    tokens = _sum(good.reported("completion_tokens"))
    wall_s = (_max(rows.end_ns) - _min(rows["intended_ns"])) / 1e9
    metrics = _metrics(columns, good, tokens, wall_s, conditions) if tokens and wall_s > 0 else {}
    facts = _facts(columns, rows, good, conditions)
    return LoadReply(
        metrics,
        facts,
        columns.error_examples,
        len(good),
        len(rows) - len(good),
        tokens,
        wall_s * conditions.time_scale,
    )


def preload_arrow() -> None:
    """Summarise an invented request, so that the first run need not wait for what Arrow loads at
    its first use.
    """
    answered = Response(200, array("q", (2, 3)), last_ns=3, prompt_tokens=1, completion_tokens=2)
    summarise(
        Columns.from_requests([RequestRecord(0, 1, 1, "0" * DIGEST_CHARACTERS, answered)]),
        RunConditions(Workload()),
    )


def _metrics(
    columns: Columns, good: _Rows, tokens: int, wall_s: float, conditions: RunConditions
) -> dict[str, float]:
    scale = conditions.time_scale
    values: dict[str, float | None] = {
        names.OUTPUT_TOK_S: tokens / (wall_s * scale),
        names.TOK_S_PER_USER: _tok_s_per_user(good, scale),
        names.ACHIEVED_CONCURRENCY: _sum(good.e2e_ns) / 1e9 / wall_s,
        names.ACCEPT_LENGTH: _accept_length(good),
        names.VERIFY_STEPS: float(_sum(good.reported("verify_ct"))) or None,
        names.CACHED_TOKEN_RATIO: _cached_ratio(good, conditions.template_tokens),
        names.GOODPUT_RATIO: _goodput(good, conditions),
        names.CLIENT_CPU_US_PER_TOKEN: 1e6 * conditions.cpu_s / tokens
        if conditions.cpu_s
        else None,
    }
    latencies = {name: ns * scale / 1e9 for name, ns in _latencies_ns(columns, good).items()}
    return {name: value for name, value in values.items() if value is not None} | latencies


def _latencies_ns(columns: Columns, good: _Rows) -> dict[str, float]:
    """Return percentiles in wall nanoseconds. A percentile is left out if no request has a value
    for it.
    """
    first, timed = good.where(good.has_output), good.where(good.has_tpot)
    e2e = percentiles(good.e2e_ns, 0.5, 0.99)
    found = {
        names.E2E_P50: e2e[0],
        names.E2E_P99: e2e[1],
        names.DISPATCH_DELAY_P99: 1e9 * _dispatch_p99_s(good),
    }
    if len(first):
        found |= dict(
            zip(
                (names.TTFT_P50, names.TTFT_P99), percentiles(first.ttft_ns, 0.5, 0.99), strict=True
            )
        )
    if len(timed):
        tpot_ns = timed.tpot_ns
        found |= dict(
            zip((names.TPOT_P50, names.TPOT_P99), percentiles(tpot_ns, 0.5, 0.99), strict=True)
        )
        found[names.TPOT_MEAN] = pc.mean(tpot_ns).as_py()
    return found | dict(
        zip(
            (names.ICL_P50, names.ICL_P99),
            stream_percentiles(lambda: arrow_tables.good_gaps_ns(columns), 0.5, 0.99),
            strict=False,
        )
    )


def _facts(columns: Columns, rows: _Rows, good: _Rows, conditions: RunConditions) -> dict[str, Any]:
    """Return the fields of core.run_facts.RunFacts. All seconds are wall seconds, because the gates
    check the client.
    """
    counts, workload = good.reported("completion_tokens"), conditions.workload
    failed = rows.where(pc.not_equal(rows[_FAILED], 0))
    tail_s, tail_share = _silent_tail(good)
    return {
        "requests_ok": len(good),
        "requests_failed": len(rows) - len(good),
        "error_kinds": _count_texts(columns, failed, "error_kind"),
        "finish_reasons": _count_texts(columns, good, "finish_reason"),
        "completion_tokens_min": _min(counts),
        "completion_tokens_max": _max(counts),
        "zero_token_requests": _sum(pc.or_(pc.equal(counts, 0), pc.invert(good.has_output))),
        "cached_token_ratio": _cached_ratio(good, conditions.template_tokens),
        "planned_cached_ratio": conditions.planned_cached_ratio,
        "achieved_concurrency": _steady_concurrency(rows, workload.concurrency)
        if workload.concurrency
        else 0.0,
        "dispatch_delay_p99_s": _dispatch_p99_s(rows),
        "loop_lag_p99_s": percentile(conditions.lags_ns, 0.99) / 1e9,
        "speculation": conditions.speculation,
        "accept_length": _accept_length(good),
        "answered_share": None if workload.concurrency else _answered_share(good),
        "client_count_mismatch": _count_mismatch(good),
        "output_tokens": _sum(counts),
        "prompt_tokens": _reported_sum(good, "prompt_tokens"),
        "off_length": _sum(
            pc.and_(pc.greater(good["asked_tokens"], 0), pc.not_equal(good["asked_tokens"], counts))
        ),
        "silent_tail_p99_s": tail_s,
        "silent_tail_share": tail_share,
        "client_cpu_s": conditions.cpu_s,
        "client_decode_s": conditions.decode_s,
    }


def _silent_tail(good: _Rows) -> tuple[float, float]:
    """Return how long answers went on after their last event with output: the 99th percentile in
    seconds, and the share of the end-to-end time of all answers.
    """
    answered = good.where(good.has_output)
    tails_ns = pc.subtract(answered.end_ns, answered["last_output_ns"])
    total_ns = _sum(answered.e2e_ns)
    return percentile(tails_ns, 0.99) / 1e9, _sum(tails_ns) / total_ns if total_ns > 0 else 0.0


def _tok_s_per_user(good: _Rows, scale: float) -> float | None:
    took = good.where(pc.greater(good.e2e_ns, 0))
    if not len(took):
        return None
    rates = pc.divide(
        took.reported("completion_tokens").cast(pa.float64()), took.e2e_ns.cast(pa.float64())
    )
    return float(pc.mean(rates).as_py()) * 1e9 / scale


def _dispatch_p99_s(rows: _Rows) -> float:
    sent = rows.where(pc.not_equal(rows["sent_ns"], 0))
    return percentile(pc.subtract(sent["sent_ns"], sent["intended_ns"]), 0.99) / 1e9


def _accept_length(good: _Rows) -> float | None:
    """Return completion tokens divided by verify steps, over the requests that report verify steps.
    Return None if none does.
    """
    reporting = good.where(pc.greater(good["verify_ct"], 0))
    return (
        _sum(reporting.reported("completion_tokens")) / _sum(reporting["verify_ct"])
        if len(reporting)
        else None
    )


def _cached_ratio(good: _Rows, template_tokens: int | None) -> float | None:
    """Return the share of prompt tokens that were cached. Tokens of the chat template, and salts
    that are equal by chance, are not counted. Return None if the server does not report cached
    tokens.

    SGLang's chat answers leave out a count of 0. If the server reported a count to the probes, a
    missing count therefore means 0.
    """
    reporting = (
        good
        if template_tokens is not None
        else good.where(pc.not_equal(good["cached_tokens"], NOT_REPORTED))
    )
    prompt_tokens = _sum(reporting.reported("prompt_tokens"))
    if not prompt_tokens:
        return None
    planned = (template_tokens or 0) + SALT_TOKENS
    return (
        _sum(pc.max_element_wise(pc.subtract(reporting.reported("cached_tokens"), planned), 0))
        / prompt_tokens
    )


def _steady_concurrency(rows: _Rows, users: int) -> float:
    """Return the mean number of requests in flight while every slot has a request to send.

    The mean begins when the last slot has begun. It ends with the first answer that ends after the
    last request was due, because the slot of that answer finds no more work.
    """
    sent = rows.where(pc.not_equal(rows["sent_ns"], 0))
    if not len(sent):
        return 0.0
    last_due = _max(sent["intended_ns"])
    start = min(_min(sent["intended_ns"]) + all_due_ns(users), _max(sent["sent_ns"]))
    end = _min(sent.end_ns.filter(pc.greater(sent.end_ns, last_due))) or _max(sent["sent_ns"])
    in_flight_ns = pc.subtract(
        pc.min_element_wise(sent.end_ns, end), pc.max_element_wise(sent["sent_ns"], start)
    )
    return _sum(pc.max_element_wise(in_flight_ns, 0)) / (end - start) if end > start else 0.0


def _answered_share(good: _Rows) -> float | None:
    """Return the number of answers that ended in the second half of the arrivals, divided by the
    number of requests due in that half. Return None if fewer than MIN_SHARE_REQUESTS were due.
    """
    due = good["intended_ns"]
    first, last = _min(due), _max(due)
    half = (first + last) // 2
    asked, answered = (
        _sum(pc.and_(pc.greater(at, half), pc.less_equal(at, last))) for at in (due, good.end_ns)
    )
    return answered / asked if asked >= MIN_SHARE_REQUESTS else None


def _count_mismatch(good: _Rows) -> float | None:
    """Return the difference between the client's and the server's token counts, as a share of the
    server's count. Return None if the client could not count.

    Without token ids the client can only count chunks, which contain at least one token each. More
    chunks than tokens are therefore a mismatch, but fewer chunks prove nothing.
    """
    counts = good.reported("completion_tokens")
    counted_tokens = _sum(counts)
    apart = pc.subtract(good["own_tokens"].cast(pa.int64()), counts)
    exact = pc.equal(good["own_is_exact"], 1)
    off = _sum(pc.if_else(exact, pc.abs(apart), pc.max_element_wise(apart, 0)))
    return off / counted_tokens if counted_tokens and (off or pc.all(exact).as_py()) else None


def _goodput(good: _Rows, conditions: RunConditions) -> float | None:
    """Return the share of successful requests that met the SLO's limits for TTFT and TPOT. Return
    None if the SLO has neither limit.
    """
    slo, to_s = conditions.workload.slo, conditions.time_scale / 1e9
    if not (slo.ttft_p99_s or slo.tpot_p99_s):
        return None
    met = pc.is_valid(good["intended_ns"])
    if slo.ttft_p99_s:
        met = pc.and_(
            good.has_output,
            pc.less_equal(pc.multiply(good.ttft_ns.cast(pa.float64()), to_s), slo.ttft_p99_s),
        )
    if slo.tpot_p99_s:
        one_token = pc.less_equal(good["completion_tokens"], 1)
        met = pc.and_(
            met, pc.or_(one_token, pc.less_equal(pc.multiply(good.tpot_ns, to_s), slo.tpot_p99_s))
        )
    return float(_sum(met)) / len(good)


def _count_texts(columns: Columns, rows: _Rows, name: str) -> Mapping[str, int]:
    """Count the rows for each text of the column `name`."""
    found = arrow_tables.decode_texts(columns, name, rows[name]).fill_null("").value_counts()
    return {entry["values"]: entry["counts"] for entry in found.to_pylist()}


def _reported_sum(rows: _Rows, name: str) -> int | None:
    """Return the sum of a column. Return None if the server did not report a count with every
    answer.
    """
    is_reported = pc.not_equal(rows[name], NOT_REPORTED)
    return _sum(rows[name]) if pc.all(is_reported, min_count=0).as_py() else None


def _sum(values: Any) -> int:
    return pc.sum(values).as_py() or 0


def _min(values: Any) -> int:
    """Return the lowest value; 0 if there are no values."""
    return pc.min(values).as_py() or 0


def _max(values: Any) -> int:
    """Return the highest value; 0 if there are no values."""
    return pc.max(values).as_py() or 0
