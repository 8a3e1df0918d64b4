"""Promises of what is kept of a trial, whatever the server says."""

from __future__ import annotations

from pathlib import Path

from fleet_agent.storage import trial_artifacts
from tests.fakes.scripted_server import scripted_server


async def test_metrics_are_kept_as_they_were(tmp_path: Path) -> None:
    async with scripted_server(
        [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\na 1\n", "close"]
    ) as server:
        await trial_artifacts.save_metrics(server.url, tmp_path / "metrics.txt")
    assert (tmp_path / "metrics.txt").read_text() == "a 1\n"


def test_a_log_that_cannot_be_copied_costs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("ready to roll\n")
    (tmp_path / "server-log.txt").mkdir()
    assert trial_artifacts.collect_artifacts(tmp_path, tmp_path) == ()


def test_a_link_that_a_server_made_where_its_log_is_kept_is_not_written_through(
    tmp_path: Path,
) -> None:
    (tmp_path / "elsewhere").write_text("precious\n")
    (tmp_path / "server.log").write_text("ready to roll\n")
    (tmp_path / "server-log.txt").symlink_to("elsewhere")
    (found,) = trial_artifacts.collect_artifacts(tmp_path, tmp_path)
    assert (found.name, (tmp_path / "elsewhere").read_text()) == ("server-log.txt", "precious\n")


async def test_an_answer_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    async with scripted_server([answer, "close"]) as server:
        await trial_artifacts.save_metrics(server.url, tmp_path / "metrics.txt")
    assert not (tmp_path / "metrics.txt").exists()


async def test_a_peer_that_speaks_no_http_leaves_no_metrics_and_no_error(tmp_path: Path) -> None:
    async with scripted_server([b"SSH-2.0-OpenSSH_9.2\r\n", "close"]) as server:
        await trial_artifacts.save_metrics(server.url, tmp_path / "metrics.txt")
    assert not (tmp_path / "metrics.txt").exists()
