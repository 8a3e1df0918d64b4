"""An agent that is killed in the middle of a search: what its runs said is kept, and another
attempt searches to the end.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from fleet_protos.events import Event, RunFinished
from tests.e2e.crash import Running

SLOTS = 3
JOB = f"""\
apiVersion: benchfleet/v1
kind: Job
name: crash
model: {{path: sim/kimi}}
engine:
  kind: simulated
  gpus: 1
  args: {{max_running_requests: {SLOTS}}}
  stop_timeout: 5s
  simulation: {{time_scale: 20}}
workloads:
  users: {{search: {{of: concurrency, from: 1, to: 16, goodput: 95%}}, output_tokens: 400, slo: {{ttft_p99: 2s}}}}
measure: {{launches: 1}}
"""


def test_a_search_that_was_cut_off_is_kept_and_searched_again(tmp_path: Path) -> None:
    run = Running(tmp_path, JOB)
    seen: Counter[str] = Counter()

    def third_run(event: Event) -> bool:
        seen["runs"] += isinstance(event.body, RunFinished)
        return seen["runs"] == 3

    try:
        run.events(third_run)
        os.kill(run.agent_pid(), signal.SIGKILL)
        output = run.finish()
        assert run.process.returncode == 0, output
        first, second = sorted(
            run.answer("show", run.answer("ls")["jobs"][0]["id"])["searches"],
            key=lambda one: one["attempt"],
        )
        assert (first["attempt"], first["ended"], [one["load"] for one in first["runs"]][:3]) == (
            1,
            "",
            [1.0, 2.0, 4.0],
        )
        assert (second["attempt"], second["ended"], second["met"], second["not_met"]) == (
            2,
            "found",
            SLOTS,
            SLOTS + 1,
        )
        [row] = run.answer("compare", run.answer("ls")["jobs"][0]["id"])["rows"]
        assert (row["launches"], row["mean"], [limit["met"] for limit in row["limits"]]) == (
            1,
            SLOTS,
            [SLOTS],
        )
        assert run.left_over() == []
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            run.process.communicate(timeout=60)
