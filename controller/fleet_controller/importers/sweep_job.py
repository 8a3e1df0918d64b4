"""Makes a job file from the sweep notation `bs,steps,topk,draft`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet_knowledge.sglang.speculation.sweep_notation import SweepPoint, distinct_servers

_JOB = """\
# A job made of the sweep {sweep}
# {summary}
apiVersion: benchfleet/v1
kind: Job
name: spec-sweep
model: {{path: $MODEL}} # fill in
engine:
  kind: sglang
  python: python3 # fill in: a virtual environment on the host that has SGLang
  args:
    tp_size: 8 # fill in
    # The same for all variants; with speculation, SGLang's default is 48.
    max_running_requests: {requests}
factors:
  speculation:
{levels}
baseline: {{speculation: {baseline}}}
workloads:
  sweep: {{concurrency: {batches}, output_tokens: 500}}
"""
_LEVEL = """\
    {name}:
      args:
        speculative_algorithm: EAGLE3
        speculative_draft_model_path: $DRAFT_MODEL # fill in: a draft for this model
        speculative_num_steps: {steps}
        speculative_eagle_topk: {topk}
        speculative_num_draft_tokens: {tokens}
"""


def sweep_job(points: Sequence[SweepPoint]) -> str:
    """Return the job file: one level for each server to launch, with the batch sizes as
    concurrencies. Invalid entries are left out.
    """
    launched = distinct_servers(points)
    batches = sorted({point.batch for point in points if not point.is_invalid})
    return _JOB.format(
        sweep=" ".join(point.text.strip() for point in points),
        summary=(
            f"{len(points)} entries, {len(launched)} servers to launch: the batch size concerns "
            "only the client"
        ),
        requests=max(48, *batches),
        levels="".join(_levels(points, launched)).rstrip("\n"),
        baseline=level_name(launched[0]),
        batches=batches[0] if len(batches) == 1 else batches,
    )


def level_name(point: SweepPoint) -> str:
    """Return `none`, or steps, topk and draft tokens such as `s3-k1-d4`."""
    return f"s{point.steps}-k{point.topk}-d{point.draft_tokens}" if point.speculates else "none"


def _levels(points: Sequence[SweepPoint], launched: Sequence[SweepPoint]) -> Iterator[str]:
    for server in launched:
        for point in points:
            if point.launch_key == server.launch_key and not point.is_invalid:
                yield from _entry_comments(point)
        if server.speculates:
            yield _LEVEL.format(
                name=level_name(server),
                steps=server.steps,
                topk=server.topk,
                tokens=server.draft_tokens,
            )
        else:
            yield f"    {level_name(server)}: {{}}\n"


def _entry_comments(point: SweepPoint) -> Iterator[str]:
    if point.adjusted_from is not None:
        yield (
            f"    # {point.text.strip()}: SGLang runs {point.draft_tokens} draft tokens, not "
            f"{point.adjusted_from}\n"
        )
    if point.verdict:
        yield f"    # {point.text.strip()}: {point.verdict}\n"
