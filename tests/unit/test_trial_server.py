"""Promises of a trial's server that no real server can be made to show in time: how looks at it add
up.
"""

from __future__ import annotations

import time
from pathlib import Path

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialServer, TrialTools, _ReadinessReports
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec


class SlowAtFirst:
    """An engine whose first look takes longer than a look may, as that of a server that compiles at
    its first request.
    """

    launches = False

    def __init__(self) -> None:
        self.looks = 0

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        raise AssertionError("nothing is launched")

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        return "http://here"

    async def check_ready(self, spec: TrialSpec, url: str, api_key: str = "") -> str:
        self.looks += 1
        if self.looks == 1:
            raise TimeoutError
        return ""

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log_path: Path, api_key: str = ""
    ) -> ev.ConfigurationProved:
        return ev.ConfigurationProved()

    def explain(self, log_path: Path, exit_code: int) -> tuple[str, str]:
        return "unknown", ""


class NeverReady(SlowAtFirst):
    """An engine whose server is never ready, and says each time why."""

    def __init__(self, *missing: str) -> None:
        super().__init__()
        self.missing = missing

    async def check_ready(self, spec: TrialSpec, url: str, api_key: str = "") -> str:
        self.looks += 1
        return self.missing[min(self.looks, len(self.missing)) - 1]


async def test_what_an_external_server_lacks_is_reported_and_is_the_reason_at_the_deadline(
    tmp_path: Path,
) -> None:
    engine = NeverReady("status 429: slow down")
    spec = TrialSpec(
        "t", engine=EngineSpec(EngineKind.EXTERNAL, "m", url="http://here", ready_timeout_s=0.5)
    )
    tools = TrialTools(Supervisor(), LoadProcess(), Ports(), {EngineKind.EXTERNAL: engine})
    reported: list[ev.Body] = []
    server = TrialServer(spec, tools, (), tmp_path)
    failed = await server.await_ready(time.monotonic() + 0.5, reported.append)
    assert reported == [ev.ServerProgressed("start", message="status 429: slow down")]
    assert isinstance(failed, ev.ServerFailed)
    assert (failed.failure_class, failed.kind) == ("not_ready", ErrorKind.CONFIG), "not retried"
    assert "the last check found: status 429: slow down" in failed.message
    assert failed.hint == "start the server, or correct engine.url"


def test_changes_are_reported_every_five_seconds_at_most_and_the_rest_every_minute() -> None:
    reported: list[ev.Body] = []
    reports = _ReadinessReports(reported.append)
    for second in range(130):
        reports.add("busy 1" if second < 2 else f"busy {min(second, 4)}", float(second))
    messages = [body.message for body in reported if isinstance(body, ev.ServerProgressed)]
    assert messages == ["busy 1", "busy 4", "busy 4", "busy 4"]


async def test_one_look_that_takes_too_long_is_not_the_end_of_the_waiting(tmp_path: Path) -> None:
    engine = SlowAtFirst()
    spec = TrialSpec(
        "t", engine=EngineSpec(EngineKind.EXTERNAL, "m", url="http://here", ready_timeout_s=60.0)
    )
    tools = TrialTools(Supervisor(), LoadProcess(), Ports(), {EngineKind.EXTERNAL: engine})
    told = await TrialServer(spec, tools, (), tmp_path).await_ready(time.monotonic() + 60.0)
    assert (type(told), engine.looks) == (ev.ServerReady, 2)
