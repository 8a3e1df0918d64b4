"""Owns the rules about where trials run: what cannot share a host."""

from __future__ import annotations

from collections.abc import Iterator

from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.findings import WARNING, Finding

_SHARE_PATH = ("hosts", "share")


def check_host_sharing(parsed: ParsedJob) -> Iterator[Finding]:
    """A server over several hosts shares none of them; one that takes no GPU has nothing by which
    it is kept apart.
    """
    job = parsed.job
    if not job.hosts.share or not parsed.is_sound(_SHARE_PATH, ("engine",)):
        return
    if job.engine.nodes > 1:
        message = f"a server over {job.engine.nodes} hosts cannot share them: each rank waits for the slowest"
        yield parsed.finding("shared_gang", _SHARE_PATH, message, "leave `share` out")
    elif job.engine.kind == "external" or job.engine.gpus == 0:
        message = "`share` has no effect on trials that take no GPU: nothing would keep them apart"
        yield parsed.finding(
            "share_without_gpus", _SHARE_PATH, message, "leave `share` out", severity=WARNING
        )
    else:
        message = "trials share their hosts: each run is flagged `shared_host`, and its numbers also say what the neighbours did"
        yield parsed.finding(
            "shared_host",
            _SHARE_PATH,
            message,
            "leave `share` out where numbers matter",
            severity=WARNING,
        )
