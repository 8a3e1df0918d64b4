"""Promises of what is kept of a trial, whatever the server says."""

from __future__ import annotations

from pathlib import Path

from fleet_agent import evidence
from tests.fakes.scripted_server import scripted_server


async def test_metrics_are_kept_as_they_were(tmp_path: Path) -> None:
    async with scripted_server([b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\na 1\n", "close"]) as server:
        await evidence.scrape(server.url, tmp_path / "metrics.txt")
    assert (tmp_path / "metrics.txt").read_text() == "a 1\n"


def test_a_log_that_cannot_be_copied_costs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("ready to roll\n")
    (tmp_path / "server-log.txt").symlink_to("/dev/full")
    assert evidence.gather(tmp_path, tmp_path) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]


async def test_a_peer_that_speaks_no_http_leaves_no_metrics_and_no_error(tmp_path: Path) -> None:
    async with scripted_server([b"SSH-2.0-OpenSSH_9.2\r\n", "close"]) as server:
        await evidence.scrape(server.url, tmp_path / "metrics.txt")
    assert not (tmp_path / "metrics.txt").exists()
