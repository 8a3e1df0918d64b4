"""What hosts look like: what is not known is not shown, and what keeps trials away is."""

from __future__ import annotations

from fleet_controller.core.controller_api import HostStatus
from fleet_controller.report.host_output import host_json, host_lines, hosts_table

BARE = HostStatus("gpu01", "gpu01:7433", "unreachable", message="no answer yet")
FULL = HostStatus(
    "gpu02", "gpu02:7433", "connected", 8, 0, "0.1.0", {"gpu": "h200", "a": "b"}, "", True, "new cable", "3 launches failed",
    1_790_000_000_000_000_000, -2.5, 1_821_536_000, "job-b1-v2/1", False, 40.0,
)  # fmt: skip


def test_a_host_that_never_answered_shows_what_the_file_says_and_why() -> None:
    assert host_lines(BARE) == [
        "host gpu01",
        "  state           unreachable",
        "  why             no answer yet",
        "  GPUs            0",
        "  address         gpu01:7433",
    ]


def test_all_that_is_known_is_shown_with_its_unit() -> None:
    text = "\n".join(host_lines(FULL))
    for told in (
        "connected, drained, quarantined", "3 launches failed (since 2026-09-21", "new cable", "job-b1-v2/1", "a=b gpu=h200",
        "2.5 s behind the controller's", "expires 2027-09-21", "cost per hour   40",
    ):  # fmt: skip
        assert told in text


def test_columns_that_no_host_fills_are_left_out() -> None:
    assert hosts_table([BARE]).columns == (
        "host",
        "state",
        "GPUs",
        "simulated GPUs",
        "address",
        "message",
    )
    assert "trial" in hosts_table([BARE, FULL]).columns


def test_json_has_null_for_what_does_not_apply() -> None:
    bare = host_json(BARE)
    assert [
        bare[key] for key in ("aside_since_unix_ns", "certificate_expires_unix_s", "cost_per_hour")
    ] == [None, None, None]
    assert host_json(FULL)["cost_per_hour"] == 40.0
