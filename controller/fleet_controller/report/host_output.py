"""Formats hosts: the table, the details of one host, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fleet_controller.core.controller_api import HostStatus
from fleet_controller.pki.expiry import ExpiringCertificate, expiry_warning
from fleet_controller.report.table import Table

JSON_VERSION = 1
_CLOCK_TOLERANCE_S = 1.0  # a smaller difference may be the round trip of the request


def hosts_table(hosts: Sequence[HostStatus], now_unix_s: float = 0.0) -> Table:
    """Return one row for each host. The row has a message if the host's certificate expires within
    30 days.

    `now_unix_s` is the time to compare with. 0 turns the message off.
    """
    rows = tuple(
        (
            host.host,
            host_state_text(host),
            str(host.gpus),
            str(host.simulated_gpus),
            host.active_trial,
            host.version,
            host.address,
            labels_text(host.labels),
            "; ".join(
                part
                for part in (unavailable_reason(host), certificate_text(host, now_unix_s))
                if part
            ),
        )
        for host in hosts
    )
    columns = (
        "host",
        "state",
        "GPUs",
        "simulated GPUs",
        "trial",
        "agent",
        "address",
        "labels",
        "message",
    )
    return Table(columns, rows, frozenset({"GPUs", "simulated GPUs"})).without_empty(
        "trial", "agent", "labels", "message"
    )


def host_state_text(host: HostStatus) -> str:
    """Return the connection state, with `drained`, `quarantined` or `load only` if it applies."""
    also = [
        word
        for word, holds in (
            ("drained", host.drained),
            ("quarantined", bool(host.aside)),
            ("load only", host.load_only),
        )
        if holds
    ]
    return ", ".join((host.state, *also))


def unavailable_reason(host: HostStatus) -> str:
    """Return why the host is not connected or gets no trials."""
    return "; ".join(part for part in (host.message, host.aside, host.drain_reason) if part)


def certificate_text(host: HostStatus, now_unix_s: float) -> str:
    """Return a warning when the host's certificate expires within 30 days, else an empty text."""
    ends = ExpiringCertificate("agent", host.host, host.certificate_expires_unix_s)
    return (
        expiry_warning(ends, now_unix_s)
        if now_unix_s and ends.expires_unix_s and ends.is_near(now_unix_s)
        else ""
    )


def labels_text(labels: Mapping[str, str]) -> str:
    """Format labels, sorted by name: `gpu=h200 rack=3`."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def host_lines(host: HostStatus) -> list[str]:
    """Return the details of one host, with one line for each detail that is known."""
    fields = {
        "state": host_state_text(host),
        "why": host.message,
        "quarantined": f"{host.aside} (since {_when(host.aside_since_unix_ns // 1_000_000_000)})"
        if host.aside
        else "",
        "drained": (host.drain_reason or "no reason was given") if host.drained else "",
        "trial": host.active_trial,
        "GPUs": str(host.gpus),
        "simulated GPUs": str(host.simulated_gpus) if host.simulated_gpus else "",
        "labels": labels_text(host.labels),
        "agent": host.version,
        "address": host.address,
        "clock": _clock_text(host.clock_ahead_s),
        "certificate": f"expires {_when(host.certificate_expires_unix_s)}"
        if host.certificate_expires_unix_s
        else "",
        "cost per hour": f"{host.cost_per_hour:g}" if host.cost_per_hour else "",
    }
    return [f"host {host.host}", *(f"  {name:<15} {text}" for name, text in fields.items() if text)]


def _clock_text(ahead_s: float) -> str:
    if abs(ahead_s) < _CLOCK_TOLERANCE_S:
        return ""
    return f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the controller's"


def _when(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def hosts_json(hosts: Sequence[HostStatus]) -> dict[str, Any]:
    """Return the JSON of the `hosts` contract in docs/json.md."""
    return {"version": JSON_VERSION, "hosts": [host_json(host) for host in hosts]}


def host_json(host: HostStatus) -> dict[str, Any]:
    """Return the JSON of one host in the `hosts` contract. None means unknown or not applicable."""
    return {
        "host": host.host,
        "address": host.address,
        "state": host.state,
        "gpus": host.gpus,
        "simulated_gpus": host.simulated_gpus,
        "version": host.version,
        "labels": dict(host.labels),
        "message": host.message,
        "drained": host.drained,
        "drain_reason": host.drain_reason,
        "aside": host.aside,
        "aside_since_unix_ns": host.aside_since_unix_ns or None,
        "clock_ahead_s": host.clock_ahead_s,
        "certificate_expires_unix_s": host.certificate_expires_unix_s or None,
        "active_trial": host.active_trial,
        "load_only": host.load_only,
        "cost_per_hour": host.cost_per_hour or None,
    }
