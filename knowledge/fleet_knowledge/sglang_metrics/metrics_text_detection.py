"""Owns the telling of figures from other text: /metrics, server information, benchmark output. Reads one text, opens no file."""

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


def recognise(text: str) -> Mapping[str, Any] | None:
    """What `fleetctl diagnose` shows of a text of these kinds, with `kind`; None for any other text. Never raises."""
    for reader in (_server_info, _cases, _serving, _one_batch, _send_one, _metrics):
        found = reader(text)
        if found is not None:
            return found
    return None


def window_of(before: str, after: str) -> Mapping[str, Any]:
    """The window between two texts of /metrics."""
    accepted = accept_length.of_counters(accept_length.Counters.of_text(before), accept_length.Counters.of_text(after))
    return {"kind": "metrics_window", **_accepted(accepted)}


def _accepted(accepted: accept_length.Accepted) -> dict[str, Any]:
    return {
        "accept_len": accepted.length, "verify_count": accepted.verify_count, "accept_len_source": accepted.source,
        "accept_len_note": accepted.why,
    }  # fmt: skip


def _metrics(text: str) -> Mapping[str, Any] | None:
    samples = prometheus_text.read_samples(text)
    if not prometheus_text.is_sglang(samples):
        return None
    since_start = accept_length.of_counters(accept_length.Counters(0.0, 0.0), accept_length.Counters.of_text(text))
    gauge = accept_length.of_average(prometheus_text.mean(samples, "sglang:spec_accept_length"))
    told = {name: prometheus_text.total(samples, f"sglang:{name}") for name in _SHOWN}
    told |= {name: _share(prometheus_text.mean(samples, f"sglang:{name}")) for name in _SHARES}
    return {
        "kind": "metrics", **told, **_accepted(accept_length.best(since_start, gauge)),
        "per_dp": prometheus_text.per_label(samples, "sglang:gen_throughput", "dp_rank"),
        "device_seconds": dict(DeviceTimes.of_samples(samples).seconds), "samples": _shown(samples),
    }  # fmt: skip


def _share(value: float | None) -> float | None:
    """Servers of 2024 wrote the hit rate in percent."""
    return value / 100 if value is not None and value > 1 else value


def _shown(samples: Sequence[prometheus_text.Sample]) -> list[list[Any]]:
    """[name, labels, value] of each series but a histogram's buckets, as many as can be looked at; null: not a number."""
    plain = [sample for sample in samples if not sample.name.endswith("_bucket")][:_MOST_SAMPLES]
    return [[sample.name, dict(sample.labels), accept_length.number(sample.value)] for sample in plain]


def _server_info(text: str) -> Mapping[str, Any] | None:
    info = server_info.read(text)
    if info is None or not server_info.is_server_info(info):
        return None
    return _figures(server_info.figures(info))


def _figures(found: server_info.ServerFigures) -> dict[str, Any]:
    shape = accept_rate.Shape.of(found.arguments or {})
    return {
        "kind": "server_info", "versions": {"sglang": found.version}, "gen_throughput": found.gen_throughput, "source": found.source,
        "role": found.role, **_accepted(found.accepted), "accept_rates": dict(accept_rate.rates(found.accepted.length, shape)),
        "accept_rate_of_this_version": accept_rate.definition_of(found.version),
        "tp_size": (found.arguments or {}).get("tp_size"),
    }  # fmt: skip


def _cases(text: str) -> Mapping[str, Any] | None:
    """JSON that gathers several answers: endpoints with what each answered, counters before and after, or rates of runs."""
    told = server_info.read(text)
    if told is None:
        return None
    if (found := server_info.choose(told)) is not None:
        missing = [str(told[name]) for name in told if name.split()[-1] == "/metrics"] == ["404"]
        return {**_figures(found), "hint": server_info.ENABLE if missing else ""}
    asked, printed = told.get("num_prompts"), told.get("stdout")
    if isinstance(printed, str):
        return _serving(printed, asked if isinstance(asked, int) else None) or recognise(printed)
    before, after = told.get("before"), told.get("after")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        accepted = accept_length.of_counters(accept_length.Counters.of_values(before), accept_length.Counters.of_values(after))
        return {"kind": "metrics_window", **_accepted(accepted)}
    if isinstance(told.get("server_info"), Mapping):
        return _figures(server_info.figures(told["server_info"]))
    return _averages(told) or _runs(told)


def _averages(told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Averages of a server after each run (`after_RUN`) and each run's verify steps (`verify_ct`): the last run alone."""
    steps = told.get("verify_ct")
    if not isinstance(steps, Mapping) or not all(accept_length.number(count) is not None for count in steps.values()):
        return None
    runs_told = [(accept_length.number(told.get(f"after_{run}")), float(count)) for run, count in steps.items()]
    if len(runs_told) < 2:
        return None
    earlier = sum(count for _, count in runs_told[:-1])
    alone = accept_length.of_last_run(runs_told[-2][0], earlier, *runs_told[-1])
    return {"kind": "runs_averages", "run": list(steps)[-1], **_accepted(alone)}


def _runs(told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    rates = next((value for name, value in told.items() if name.startswith("runs") and isinstance(value, list)), None)
    if rates is None:
        return None
    found = steady_runs.steady_runs([accept_length.number(rate) for rate in rates])
    built = [line for line in str(told.get("log", "")).splitlines() if steady_runs.is_jit_line(line)]
    return {
        "kind": "runs", "steady_runs": list(found.steady), "reported": found.value, "needs_more": found.needs_more,
        "dropped": {str(at): why for at, why in found.dropped.items()},
        "warnings": [{"code": "jit_in_window", "message": line, "hint": "a run in which a kernel was built is invalid"} for line in built],
    }  # fmt: skip


def _serving(text: str, requested: int | None = None) -> Mapping[str, Any] | None:
    found = bench_serving.read(text, requested)
    if not found:
        return None
    worst = next((one for one in found if one.status != "ok"), found[-1])
    return {"kind": "bench_serving", "state": worst.status, "hint": worst.hint, "summaries": [one.to_json() for one in found]}


def _one_batch(text: str) -> Mapping[str, Any] | None:
    found = bench_one_batch.read(text)
    return {"kind": "bench_one_batch", "batches": [json.loads(json.dumps(batch)) for batch in found]} if found else None


def _send_one(text: str) -> Mapping[str, Any] | None:
    found = send_one.read(text)
    return {"kind": "send_one", "requests": [one.to_json() for one in found]} if found else None
