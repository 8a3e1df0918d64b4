"""Which files a job may name: no link leads out of its folder, and nothing waits without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.yaml.findings import ERROR, JobRejected

HEAD = """\
apiVersion: benchfleet/v1
kind: Job
name: small
model: {path: m}
engine: {kind: simulated}
workloads:
"""


def load(workload: str, folder: Path) -> LoadedJob:
    return load_job(f"{HEAD}  {workload}\n", "job.yaml", folder)


def refused(workload: str, folder: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(JobRejected) as rejected:
        load(workload, folder)
    return [
        (finding.code, finding.line, finding.message)
        for finding in rejected.value.findings
        if finding.severity == ERROR
    ]


@pytest.mark.parametrize(
    "named",
    ["trace: p.csv", "trace: sub/p.csv", "concurrency: 1, output_tokens: 5, prompts: 'file:p.csv'"],
)
@pytest.mark.parametrize("through", ["file", "folder"])
def test_a_link_that_leads_out_of_the_jobs_folder_is_refused(
    named: str, through: str, tmp_path: Path
) -> None:
    job, secret = tmp_path / "job", tmp_path / "outside" / "p.csv"
    secret.parent.mkdir()
    secret.write_text("time_s,prompt_tokens,output_tokens\n0,10,10\n")
    (job / "sub").mkdir(parents=True)
    if through == "folder":
        (job / "sub").rmdir()
        (job / "sub").symlink_to(secret.parent)
    for place in (job, job / "sub"):
        if not (place / "p.csv").exists():
            (place / "p.csv").symlink_to(secret)
    [(code, _, message)] = refused(f"a: {{{named}}}", job)
    assert code == "file_unreadable"
    assert f"is a link to {secret.resolve()}, outside of the job's folder" in message


def test_a_link_inside_of_the_jobs_folder_and_a_path_that_the_job_writes_out_are_read(
    tmp_path: Path,
) -> None:
    job, other = tmp_path / "job", tmp_path / "other.csv"
    job.mkdir()
    for path in (job / "real.csv", other):
        path.write_text("time_s,prompt_tokens,output_tokens\n0,10,10\n")
    (job / "link.csv").symlink_to("real.csv")
    (tmp_path / "to-job").symlink_to(job)
    for name in ("link.csv", "../other.csv", str(other)):
        assert load(f"a: {{trace: {name}}}", job).job.workloads[0].requests == 1
        assert load(f"a: {{trace: {name}}}", tmp_path / "to-job").job.workloads[0].requests == 1


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_not_a_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    named = {"fifo": "p.csv", "device": "/dev/zero", "folder": "p.csv"}[kind]
    if kind == "fifo":
        os.mkfifo(tmp_path / "p.csv")
    if kind == "folder":
        (tmp_path / "p.csv").mkdir()
    [(code, _, message)] = refused(f"a: {{trace: {named}}}", tmp_path)
    assert (code, message) == (
        "file_unreadable",
        f"cannot read `{named}`: it is not a regular file",
    )
