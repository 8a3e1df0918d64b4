"""Recognises /metrics, server information and benchmark output, and reads the figures in
the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fleet_knowledge.sglang_metrics import (
    accept_length,
    accept_rate,
    bench_one_batch,
    bench_serving,
    prometheus_text,
    send_one,
    server_info,
    steady_runs,
)
from fleet_knowledge.sglang_metrics.device_timer import DeviceTimes

_SHOWN = ("gen_throughput", "num_running_reqs", "num_queue_reqs", "generation_tokens_total")
_SHARES = ("cache_hit_rate", "spec_accept_rate", "token_usage")
_MOST_SAMPLES = 500


def recognise_metrics_text(text: str) -> Mapping[str, Any] | None:
    """Return what `fleetctl diagnose` shows for a text with metrics, server information or
    benchmark output. `kind` says what the text is. Return None for any other text.

    Never raises.
    """
    for reader in (_server_info, _gathered_answers, _serving, _one_batch, _send_one, _metrics):
        found = reader(text)
        if found is not None:
            return found
    return None


def accept_length_between(before: str, after: str) -> Mapping[str, Any]:
    """Return the accept length between two moments. `before` and `after` are the texts of
    /metrics.
    """
    accepted = accept_length.accept_length_from_counters(
        accept_length.SpeculationCounters.from_metrics(before),
        accept_length.SpeculationCounters.from_metrics(after),
    )
    return {"kind": "metrics_window", **_accept_length_json(accepted)}


def _accept_length_json(accepted: accept_length.AcceptLength) -> dict[str, Any]:
    return {
        "accept_len": accepted.length,
        "verify_count": accepted.verify_count,
        "accept_len_source": accepted.source,
        "accept_len_note": accepted.reason,
    }


def _metrics(text: str) -> Mapping[str, Any] | None:
    samples = prometheus_text.read_samples(text)
    if not prometheus_text.is_sglang(samples):
        return None
    since_start = accept_length.accept_length_from_counters(
        accept_length.SpeculationCounters(0.0, 0.0),
        accept_length.SpeculationCounters.from_metrics(text),
    )
    gauge = accept_length.accept_length_from_average(
        prometheus_text.mean(samples, "sglang:spec_accept_length")
    )
    values = {name: prometheus_text.total(samples, f"sglang:{name}") for name in _SHOWN}
    values |= {name: _share(prometheus_text.mean(samples, f"sglang:{name}")) for name in _SHARES}
    return {
        "kind": "metrics",
        **values,
        **_accept_length_json(accept_length.first_measured(since_start, gauge)),
        "per_dp": prometheus_text.per_label(samples, "sglang:gen_throughput", "dp_rank"),
        "device_seconds": dict(DeviceTimes.from_samples(samples).seconds),
        "samples": _samples_json(samples),
    }


def _share(value: float | None) -> float | None:
    """Return a share as a number between 0 and 1. Servers of 2024 wrote the hit rate in percent."""
    return value / 100 if value is not None and value > 1 else value


def _samples_json(samples: Sequence[prometheus_text.MetricSample]) -> list[list[Any]]:
    """Return [name, labels, value] of at most 500 series. Histogram buckets are left out.

    A value that is not a finite number is null.
    """
    plain = [sample for sample in samples if not sample.name.endswith("_bucket")][:_MOST_SAMPLES]
    return [
        [sample.name, dict(sample.labels), accept_length.finite_number(sample.value)]
        for sample in plain
    ]


def _server_info(text: str) -> Mapping[str, Any] | None:
    info = server_info.read_json_object(text)
    if info is None or not server_info.is_server_info(info):
        return None
    return _server_info_json(server_info.parse_server_info(info))


def _server_info_json(found: server_info.ServerInfo) -> dict[str, Any]:
    shape = accept_rate.DraftShape.from_arguments(found.arguments or {})
    return {
        "kind": "server_info",
        "versions": {"sglang": found.version},
        "gen_throughput": found.gen_throughput,
        "source": found.source,
        "role": found.role,
        **_accept_length_json(found.accept_length),
        "accept_rates": dict(accept_rate.accept_rates(found.accept_length.length, shape)),
        "accept_rate_of_this_version": accept_rate.definition_in_version(found.version),
        "tp_size": (found.arguments or {}).get("tp_size"),
    }


def _gathered_answers(text: str) -> Mapping[str, Any] | None:
    """Return what a JSON document with several answers contains.

    The document may hold endpoints with their answers, counters before and after a run, or the
    rates of several runs.
    """
    document = server_info.read_json_object(text)
    if document is None:
        return None
    if (found := server_info.first_answer(document)) is not None:
        missing = [str(document[name]) for name in document if name.split()[-1] == "/metrics"] == [
            "404"
        ]
        return {
            **_server_info_json(found),
            "hint": server_info.ENABLE_METRICS_HINT if missing else "",
        }
    asked, printed = document.get("num_prompts"), document.get("stdout")
    if isinstance(printed, str):
        return _serving(
            printed, asked if isinstance(asked, int) else None
        ) or recognise_metrics_text(printed)
    before, after = document.get("before"), document.get("after")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        accepted = accept_length.accept_length_from_counters(
            accept_length.SpeculationCounters.from_values(before),
            accept_length.SpeculationCounters.from_values(after),
        )
        return {"kind": "metrics_window", **_accept_length_json(accepted)}
    if isinstance(document.get("server_info"), Mapping):
        return _server_info_json(server_info.parse_server_info(document["server_info"]))
    return _averages(document) or _runs(document)


def _averages(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the accept length of the last run alone. Return None if the document does not contain
    it.

    The document has the server's average after each run (`after_RUN`) and the verify steps of each
    run (`verify_ct`).
    """
    steps = document.get("verify_ct")
    if not isinstance(steps, Mapping) or not all(
        accept_length.finite_number(count) is not None for count in steps.values()
    ):
        return None
    averages = [
        (accept_length.finite_number(document.get(f"after_{run}")), float(count))
        for run, count in steps.items()
    ]
    if len(averages) < 2:
        return None
    earlier = sum(count for _, count in averages[:-1])
    alone = accept_length.accept_length_of_last_run(averages[-2][0], earlier, *averages[-1])
    return {"kind": "runs_averages", "run": list(steps)[-1], **_accept_length_json(alone)}


def _runs(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    rates = next(
        (
            value
            for name, value in document.items()
            if name.startswith("runs") and isinstance(value, list)
        ),
        None,
    )
    if rates is None:
        return None
    found = steady_runs.select_steady_runs([accept_length.finite_number(rate) for rate in rates])
    built = [
        line for line in str(document.get("log", "")).splitlines() if steady_runs.is_jit_line(line)
    ]
    return {
        "kind": "runs",
        "steady_runs": list(found.steady),
        "reported": found.value,
        "needs_more": found.needs_more,
        "dropped": {str(at): why for at, why in found.dropped.items()},
        "warnings": [
            {
                "code": "jit_in_window",
                "message": line,
                "hint": "a run is invalid if a kernel was compiled in it",
            }
            for line in built
        ],
    }


def _serving(text: str, requested: int | None = None) -> Mapping[str, Any] | None:
    found = bench_serving.read_serving_summaries(text, requested)
    if not found:
        return None
    worst = next((one for one in found if one.status != "ok"), found[-1])
    return {
        "kind": "bench_serving",
        "state": worst.status,
        "hint": worst.hint,
        "summaries": [one.to_json() for one in found],
    }


def _one_batch(text: str) -> Mapping[str, Any] | None:
    found = bench_one_batch.read_one_batch_results(text)
    return (
        {"kind": "bench_one_batch", "batches": [json.loads(json.dumps(batch)) for batch in found]}
        if found
        else None
    )


def _send_one(text: str) -> Mapping[str, Any] | None:
    found = send_one.read_send_one_results(text)
    return {"kind": "send_one", "requests": [one.to_json() for one in found]} if found else None
